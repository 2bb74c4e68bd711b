"""Examples: whole lifecycles small enough to read in one sitting."""
