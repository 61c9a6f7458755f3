//! The Linux side: TAP devices, namespaces, interface set-up.
