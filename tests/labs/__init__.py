"""What several tests share: doubles, planted records, whole jobs, and readers of pages."""
