//! What a transfer makes of a path: shares of what theory allows, in virtual time.
