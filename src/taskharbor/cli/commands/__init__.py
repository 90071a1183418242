"""The commands of `taskharbor`, a module for each group of them; `taskharbor.cli.main` lists them."""
