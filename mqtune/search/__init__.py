"""Search spaces, and searchers: which configs an experiment may try, and what to try next."""
