"""What people give: inputs, batches and arguments, checked before anything else sees them."""
