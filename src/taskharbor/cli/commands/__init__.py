"""One module for each command of `taskharbor`; `taskharbor.cli.root` lists them."""
