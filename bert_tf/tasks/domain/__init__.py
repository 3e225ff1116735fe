"""Released weights trained further on the texts of a domain, by run_domain.py."""
