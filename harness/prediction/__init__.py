"""What more ranks than were launched would take, from measured launches and measured or stated links."""
