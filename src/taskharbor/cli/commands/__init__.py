"""One module for each command of `taskharbor`; `taskharbor.cli.main` lists them."""
