//! Volumes that know LBAs and bytes: io_uring files and devices, RAM, null.
