"""What people look at: event logs, histories, figures and pages."""
