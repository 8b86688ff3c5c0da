"""Coordinators of groups and of transactions: machines, and what carries out their effects."""
