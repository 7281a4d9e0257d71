"""Who may do what at the doors: principals, ACLs, quotas, the audit log."""
