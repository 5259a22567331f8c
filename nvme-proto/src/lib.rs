//! NVMe and NVMe over Fabrics wire structures: bytes to typed values and back.
