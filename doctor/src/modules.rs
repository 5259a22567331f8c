//! Kernel modules.

use crate::{Check, Device, DeviceFile, Machine, Role};

/// Where a module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Loaded, or part of the kernel.
    Loaded,
    /// There to be loaded.
    Loadable,
    /// This kernel has none.
    Absent,
}

/// Where the module called `name` is; `_` and `-` are the same in module names.
pub(crate) fn state(machine: &Machine, name: &str) -> State {
    let name = name.replace('-', "_");
    if machine.has(&format!("/sys/module/{name}")) {
        return State::Loaded;
    }
    let folder = format!("/lib/modules/{}", machine.release());
    let lists = |list: &str| {
        let list = machine.read(&format!("{folder}/{list}"));
        list.unwrap_or_default().lines().any(|line| {
            // `kernel/fs/fuse/fuse.ko.xz: kernel/…`
            let path = line.split_once(':').map_or(line, |(path, _)| path);
            let file = path.rsplit('/').next().unwrap_or(path);
            let module = file.split_once(".ko").map_or(file, |(module, _)| module);
            module.replace('-', "_") == name
        })
    };
    if lists("modules.builtin") {
        State::Loaded
    } else if lists("modules.dep") {
        State::Loadable
    } else {
        State::Absent
    }
}

/// What programs need to use RDMA devices; devices in software; the kernel's NVMe host.
pub(crate) fn checks(machine: &Machine, devices: &[Device], role: &Role) -> Vec<Check> {
    let of_the_kernels_host: &[&str] = match role {
        Role::Host => &["nvme_fabrics", "nvme_rdma", "nvme_tcp"],
        Role::TcpHost => &["nvme_fabrics", "nvme_tcp"],
        Role::Target { .. } => &[],
    };
    let mut checks = Vec::new();
    if *role != Role::TcpHost {
        checks.push(access(machine, devices, role));
        checks.push(Check::ok(
            "software RDMA modules",
            format!("{}; optional", words(machine, &["siw", "rdma_rxe"])),
        ));
    }
    if !of_the_kernels_host.is_empty() {
        checks.push(Check::ok(
            "NVMe host modules",
            format!(
                "{}; for `nvme connect`, capstan needs none",
                words(machine, of_the_kernels_host)
            ),
        ));
    }
    checks
}

/// `rdma_cm loaded, ib_uverbs not loaded, rdma_ucm not in this kernel`.
fn words(machine: &Machine, modules: &[&str]) -> String {
    let words = modules.iter().map(|module| match state(machine, module) {
        State::Loaded => format!("{module} loaded"),
        State::Loadable => format!("{module} not loaded"),
        State::Absent => format!("{module} not in this kernel"),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn access(machine: &Machine, devices: &[Device], role: &Role) -> Check {
    const NAME: &str = "RDMA modules";
    const MODULES: [&str; 3] = ["rdma_cm", "ib_uverbs", "rdma_ucm"];
    let seen = words(machine, &MODULES);
    if devices.is_empty() {
        return Check::ok(NAME, format!("{seen}; needed with RDMA devices only"));
    }
    let expected = "all loaded, for the verbs provider; iwarp needs none";
    let broken = |seen: String, mend: String| Check {
        verdict: role.of_device(),
        ..Check::warning(NAME, seen, expected, mend)
    };
    let in_state = |wanted| {
        let found = MODULES.into_iter();
        found
            .filter(|module| state(machine, module) == wanted)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let absent = in_state(State::Absent);
    let loadable = in_state(State::Loadable);
    if !absent.is_empty() {
        let release = machine.release();
        let mend = format!(
            "install the modules of {release} that has {absent} (Ubuntu: apt-get install \
             linux-modules-extra-{release}), or use --provider iwarp"
        );
        return broken(seen, mend);
    }
    if !loadable.is_empty() {
        return broken(seen, format!("modprobe -a {loadable}"));
    }
    let files = devices.iter().filter_map(|device| device.uverbs.as_deref());
    for file in ["/dev/infiniband/rdma_cm"].into_iter().chain(files) {
        let (state, mend) = match machine.device_file(file) {
            DeviceFile::Usable => continue,
            DeviceFile::Missing => (
                "missing",
                "udevadm trigger --subsystem-match=infiniband_verbs --subsystem-match=misc (in a \
                 container: --device /dev/infiniband)"
                    .to_owned(),
            ),
            DeviceFile::Refused => ("not for this user", format!("sudo chmod 0666 {file}")),
        };
        return broken(format!("{seen}; {file} is {state}"), mend);
    }
    Check::ok(NAME, seen)
}

#[cfg(test)]
mod tests {
    use super::{State, checks, state};
    use crate::testing::Tree;
    use crate::{Check, Device, Role, Verdict, trees};

    const VERBS: Role = Role::Target {
        memory_bytes: 0,
        verbs: true,
        needs: None,
    };

    fn rdma(tree: &Tree, role: &Role) -> Check {
        let machine = tree.machine();
        checks(&machine, &Device::all(&machine), role).swap_remove(0)
    }

    fn with_modules(dep: &str, builtin: &str) -> Tree {
        Tree::new()
            .file("proc/sys/kernel/osrelease", "6.1.0-9\n")
            .file("lib/modules/6.1.0-9/modules.dep", dep)
            .file("lib/modules/6.1.0-9/modules.builtin", builtin)
    }

    #[test]
    fn a_module_is_loaded_built_in_loadable_or_not_there() {
        let tree = with_modules(
            "kernel/drivers/nvme/host/nvme-rdma.ko.zst: kernel/x/rdma_cm.ko.zst\n",
            "kernel/drivers/block/loop.ko\n",
        );
        let tree = tree.file("sys/module/siw/refcnt", "0\n");
        let machine = tree.machine();
        assert_eq!(state(&machine, "siw"), State::Loaded);
        assert_eq!(state(&machine, "loop"), State::Loaded);
        assert_eq!(state(&machine, "nvme_rdma"), State::Loadable);
        // A name that only appears as what another needs.
        assert_eq!(state(&machine, "rdma_cm"), State::Absent);
    }

    #[test]
    fn the_modules_of_the_kernels_host_are_those_of_the_transports() {
        let tree = Tree::new().file("sys/module/nvme_tcp/refcnt", "0\n");
        let machine = tree.machine();
        let seen = |role| checks(&machine, &[], &role).pop().unwrap().seen;
        assert_eq!(
            seen(Role::TcpHost),
            "nvme_fabrics not in this kernel, nvme_tcp loaded; for `nvme connect`, capstan needs none"
        );
        assert!(seen(Role::Host).contains("nvme_rdma not in this kernel, nvme_tcp loaded; "));
    }

    #[test]
    fn without_devices_no_module_is_needed() {
        let check = rdma(&Tree::new(), &Role::Host);
        assert_eq!(check.verdict, Verdict::Ok);
        assert!(check.seen.contains("rdma_ucm not in this kernel"));
    }

    #[test]
    fn devices_need_modules_that_are_loaded_or_installed() {
        let dep = "k/rdma_cm.ko:\nk/ib_uverbs.ko:\nk/rdma_ucm.ko:\n";
        let loadable = trees::soft_roce(with_modules(dep, ""));
        let loadable = loadable.file("sys/module/rdma_cm/refcnt", "1\n");
        let check = rdma(&loadable, &VERBS);
        assert_eq!(check.verdict, Verdict::Error);
        assert_eq!(check.remedy.unwrap(), "modprobe -a ib_uverbs rdma_ucm");
        let absent = rdma(&trees::soft_roce(with_modules("", "")), &Role::Host);
        assert_eq!(absent.verdict, Verdict::Warning);
        assert!(
            absent
                .remedy
                .unwrap()
                .contains("linux-modules-extra-6.1.0-9")
        );
    }

    #[test]
    fn device_files_are_looked_at() {
        let whole = trees::soft_roce(trees::well(Tree::new()));
        assert_eq!(rdma(&whole, &VERBS).verdict, Verdict::Ok);
        let mut tree = trees::soft_roce(Tree::new()).file("dev/infiniband/rdma_cm", "");
        for module in ["rdma_cm", "ib_uverbs", "rdma_ucm"] {
            tree = tree.file(&format!("sys/module/{module}/refcnt"), "0\n");
        }
        let check = rdma(&tree, &VERBS);
        assert_eq!(check.verdict, Verdict::Error);
        assert!(check.seen.ends_with("; /dev/infiniband/uverbs1 is missing"));
    }
}
