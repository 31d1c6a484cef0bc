"""What programs do, drawn by dice: tables, conditions and steps."""
