"""What each request does to the image, one module per family of requests; ``controller.py`` chooses among them."""
