//! Functions of libibverbs and librdmacm, which are opened when the first of them is called: one
//! program has hardware RDMA where they are installed, and starts where they are not. `rdma-sys`
//! says what the functions take, and nothing of it is linked.
#![expect(unsafe_code, reason = "opens libibverbs and librdmacm, and calls them")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io;
use std::path::Path;
use std::sync::LazyLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use rdma_sys::{
    _compat_ibv_port_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_event_type, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_srq, ibv_srq_init_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};

/// The dynamic linker opens libibverbs with it.
const LIBRARY: &str = "librdmacm.so.1";
/// Devices of the kernel, which are there without the libraries, too.
const DEVICES: &str = "/sys/class/infiniband";

/// Why the functions are not there.
type Missing = String;

/// Open for good: what the libraries made may be in use until the end.
static FUNCTIONS: LazyLock<Result<Functions, Missing>> = LazyLock::new(|| {
    // SAFETY: it is the library of the system, which runs nothing of ours when it is opened.
    let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_GLOBAL) };
    let _open_for_good = library.map_err(|error| error.to_string())?.into_raw();
    // As a program that is linked with it finds them: what LD_PRELOAD has comes first.
    Functions::find(&Library::this())
});

/// Whether there are functions to call; to be asked before the first of them.
///
/// # Errors
/// `ENOSYS` where there is no device either, as `ibv_get_device_list` has it; else the libraries,
/// with what to install.
pub(in crate::verbs) fn open() -> io::Result<()> {
    match &*FUNCTIONS {
        Ok(_) => Ok(()),
        Err(missing) => Err(absent(missing, Path::new(DEVICES))),
    }
}

fn absent(missing: &str, devices: &Path) -> io::Error {
    let has_device = devices.read_dir().is_ok_and(|mut all| all.next().is_some());
    if !has_device {
        return io::Error::from_raw_os_error(libc::ENOSYS);
    }
    let words = format!(
        "{LIBRARY} cannot be opened ({missing}); install libibverbs1, librdmacm1 and ibverbs-providers \
         (Debian, Ubuntu) or libibverbs and librdmacm (Fedora)"
    );
    io::Error::new(io::ErrorKind::NotFound, words)
}

/// The functions, of which there are objects to call them with once [`open`] has succeeded.
fn functions() -> &'static Functions {
    match &*FUNCTIONS {
        Ok(functions) => functions,
        Err(missing) => unreachable!("an object of libraries that are not there: {missing}"),
    }
}

macro_rules! opened {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// Where each function is.
        struct Functions { $($name: unsafe extern "C" fn($($type),*) $(-> $result)?),* }

        impl Functions {
            fn find(library: &Library) -> Result<Self, Missing> {
                Ok(Self { $($name: {
                    // SAFETY: the function is of this type, which is compared with that of
                    // `rdma-sys` below.
                    let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                    *found.map_err(|error| error.to_string())?
                }),* })
            }
        }

        $(
            const _: unsafe extern "C" fn($($type),*) $(-> $result)? = rdma_sys::$name;

            /// The function of the library, as its man page has it.
            ///
            /// # Safety
            /// As there.
            pub(in crate::verbs) unsafe fn $name($($arg: $type),*) $(-> $result)? {
                let function = functions().$name;
                // SAFETY: the caller answers for the arguments.
                unsafe { function($($arg),*) }
            }
        )*
    };
}

opened! {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(event: *mut ibv_async_event);
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int;
    fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        port_space: rdma_port_space::Type,
    ) -> c_int;
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int;
    fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        source: *mut libc::sockaddr,
        destination: *mut libc::sockaddr,
        timeout_ms: c_int,
    ) -> c_int;
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int;
    fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int;
    fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This machine builds with the headers of the libraries, which bring them.
    #[test]
    fn every_function_is_in_the_libraries() {
        open().unwrap();
    }

    #[test]
    fn libraries_that_are_missing_are_named_where_there_is_a_device() {
        let folder = std::env::temp_dir().join(format!("capstan-opened-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let error = absent("no such file", &folder);
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
        std::fs::create_dir(folder.join("mlx5_0")).unwrap();
        let error = absent("no such file", &folder).to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(
            error
                .starts_with("librdmacm.so.1 cannot be opened (no such file); install libibverbs1"),
            "{error}"
        );
    }

    /// The linker would make the program need them, and it would not start without them.
    #[test]
    fn this_program_needs_no_library_of_rdma() {
        let program = std::env::current_exe().unwrap();
        let output = std::process::Command::new("readelf")
            .arg("--dynamic")
            .arg(program)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains("libc.so"), "{told}");
        assert!(
            !told.contains("libibverbs") && !told.contains("librdmacm"),
            "{told}"
        );
    }
}
