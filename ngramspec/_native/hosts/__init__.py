"""What other programs ask for in their own terms: llama.cpp, Arctic, SGLang."""
