"""Teacher scores of finished segments: the service between rollouts and the learner, and its cache."""
