"""Models, Modelfiles and chat templates of Ollama."""
