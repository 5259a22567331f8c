//! Which RDMA devices this machine has.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;

use super::sys;

/// Names of the RDMA devices, as `rdma link` shows them.
///
/// # Errors
/// The kernel has no RDMA support (`ENOSYS`), the libraries are not installed, or the list cannot
/// be read.
pub fn device_names() -> io::Result<Vec<String>> {
    let list = DeviceList::open()?;
    Ok(list.devices().filter_map(name).collect())
}

/// The array `ibv_get_device_list` allocates.
pub(super) struct DeviceList {
    first: NonNull<*mut sys::ibv_device>,
    len: usize,
}

impl DeviceList {
    pub(super) fn open() -> io::Result<Self> {
        sys::open()?;
        let mut len = 0;
        // SAFETY: the out parameter is a live integer.
        let first = unsafe { sys::ibv_get_device_list(&raw mut len) };
        // It returns NULL and sets errno on failure.
        let first = NonNull::new(first).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            first,
            len: usize::try_from(len).unwrap_or(0),
        })
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = *mut sys::ibv_device> + '_ {
        (0..self.len).map(|at| {
            // SAFETY: the array has `len` entries and lives until `self` is dropped.
            let entry = unsafe { self.first.add(at) };
            // SAFETY: as above; every entry was written by libibverbs.
            unsafe { entry.read() }
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: it came from `ibv_get_device_list` and is freed once.
        unsafe { sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

pub(super) fn name(device: *mut sys::ibv_device) -> Option<String> {
    // SAFETY: the device belongs to a list that is still open.
    let name = unsafe { sys::ibv_get_device_name(device) };
    if name.is_null() {
        return None;
    }
    // SAFETY: not NULL, so it is a C string inside the device.
    let name = unsafe { CStr::from_ptr(name) };
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    /// The library's list and the kernel's agree, on a machine with devices or without.
    #[test]
    fn devices_are_those_of_sysfs() {
        let mut expected: Vec<String> = std::fs::read_dir("/sys/class/infiniband")
            .map(|dir| {
                dir.map(|e| e.unwrap().file_name().into_string().unwrap())
                    .collect()
            })
            .unwrap_or_default();
        expected.sort();
        let mut found = super::device_names().unwrap_or_default();
        found.sort();
        assert_eq!(found, expected);
    }
}
