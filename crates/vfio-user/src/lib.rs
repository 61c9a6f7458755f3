//! A vfio-user server: messages, session, regions, interrupts and the guest's DMA windows.
