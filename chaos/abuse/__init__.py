"""Requests that mean harm, and what is made of them."""
