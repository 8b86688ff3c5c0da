"""The transaction coordinator as a pure machine: transactional ids and how their transactions end."""
