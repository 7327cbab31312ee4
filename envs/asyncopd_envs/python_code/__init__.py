"""Problems solved by writing code and running it in a sandbox."""
