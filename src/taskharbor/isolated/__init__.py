"""The processes of isolated attempts: a zygote that has imported the app, and the children that it forks."""
