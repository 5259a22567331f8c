//! Numbers of the C library's structures, which are of other types with another C library.

/// `number` as a field of `msghdr` or `cmsghdr`, and back: glibc has counts and lengths there as
/// `usize`, musl as 32 bits. One that does not fit is 0, so that the call moves nothing; it is of
/// a few pieces or bytes and always fits.
pub(in crate::iwarp) fn for_c<F, T: TryFrom<F> + Default>(number: F) -> T {
    T::try_from(number).unwrap_or_default()
}
