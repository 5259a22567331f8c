//! Identify, of every kind.

use alloc::vec::Vec;

use capstan_nvme_proto::command::{AdminCommand, Identify};
use capstan_nvme_proto::identify::{
    Cns, CommandSetList, CommandSetVector, ControllerAttributes, ControllerType, Csi,
    IdentifyController, IdentifyNamespace, IndependentIdentifyNamespace, NamespaceId,
    NamespaceIdDescriptors, NamespaceList, NvmIdentifyController, OptionalNvmCommands, SglSupport,
    VolatileWriteCacheSupport,
};
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::status::Status;

use crate::testing::{Association, Bench, GEOMETRY, host, namespace_config, subnqn};
use crate::{Geometry, NamespaceConfig, TargetConfig};

fn read(bench: &mut Bench, association: &Association, identify: Identify) -> Vec<u8> {
    let (cqe, data) = bench.admin(association, &AdminCommand::Identify(identify));
    assert!(cqe.status().is_success(), "{identify:?}: {cqe:?}");
    assert_eq!(data.len(), 4096);
    data
}

fn status(bench: &mut Bench, association: &Association, identify: Identify) -> Status {
    bench
        .admin(association, &AdminCommand::Identify(identify))
        .0
        .status()
}

#[test]
fn the_controller_is_honest_about_itself() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let data = read(&mut bench, &association, Identify::new(Cns::CONTROLLER, 0));
    let data = IdentifyController::from_data(&data).unwrap();
    assert_eq!(data.serial_number().as_str(), Some("SN1"));
    assert_eq!(data.model_number().as_str(), Some("Capstan test"));
    assert_eq!(data.firmware_revision().as_str(), Some("1.0"));
    assert_eq!(data.subsystem_nqn().unwrap(), subnqn());
    assert_eq!(data.ieee, [0xCC, 0xBB, 0xAA]);
    assert_eq!(data.cntlid.get(), association.cntlid);
    assert_eq!(data.cntrltype, ControllerType::IO);
    assert_eq!(data.ver.get(), 0x0002_0000);
    assert_eq!(data.max_data_transfer_bytes(0), Some(1 << 20));
    assert_eq!(data.in_capsule_data_bytes(), 8192);
    assert_eq!(data.iorcsz_16bytes.get(), 1);
    assert_eq!((data.icdoff_16bytes.get(), data.msdbd), (0, 16));
    assert_eq!((data.acl_z, data.aerl_z, data.elpe_z), (3, 3, 63));
    assert_eq!((data.sqes, data.cqes), (0x66, 0x44));
    assert_eq!(data.maxcmd.get(), 128);
    assert_eq!((data.nn.get(), data.mnan.get()), (1024, 1024));
    assert_eq!(data.kas_100ms.get(), 10);
    let ctratt = ControllerAttributes::from_bits_retain(data.ctratt.get());
    assert!(ctratt.contains(ControllerAttributes::TRAFFIC_BASED_KEEP_ALIVE));
    let sgls = SglSupport::from_bits_retain(data.sgls.get());
    assert!(sgls.contains(SglSupport::KEYED | SglSupport::OFFSET | SglSupport::OVERSIZED));
    let vwc = VolatileWriteCacheSupport::from_bits_retain(data.vwc);
    assert!(vwc.contains(VolatileWriteCacheSupport::PRESENT));
    let oncs = OptionalNvmCommands::from_bits_retain(data.oncs.get());
    assert!(oncs.contains(OptionalNvmCommands::DATASET_MANAGEMENT | OptionalNvmCommands::COPY));
    assert!(oncs.contains(OptionalNvmCommands::RESERVATIONS));
    assert!(!oncs.contains(OptionalNvmCommands::WRITE_UNCORRECTABLE));
    assert_eq!(data.tnvmcap_bytes.get(), 512_000);
}

/// Of all controllers of a target; nobody's unless somebody says so.
#[test]
fn vendors_are_those_the_operator_names() {
    let named = TargetConfig {
        vendor_ids: [0x1B36, 0x1AF4],
        ..TargetConfig::default()
    };
    for (config, expected) in [(TargetConfig::default(), (0, 0)), (named, (0x1B36, 0x1AF4))] {
        let mut bench = Bench::with(config);
        let association = bench.ready();
        let discovery = bench.associate(host(1), Nqn::discovery(), 0).unwrap();
        bench.enable(&discovery);
        for association in [association, discovery] {
            let identify = Identify::new(Cns::CONTROLLER, 0);
            let data = read(&mut bench, &association, identify);
            let data = IdentifyController::from_data(&data).unwrap();
            assert_eq!((data.vid.get(), data.ssvid.get()), expected);
        }
    }
}

/// What monitors compare the temperature of the SMART log with; the threshold that hosts may set
/// is the first at first (Temperature Threshold).
#[test]
fn temperatures_have_thresholds_above_what_is_measured() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let data = read(&mut bench, &association, Identify::new(Cns::CONTROLLER, 0));
    let data = IdentifyController::from_data(&data).unwrap();
    let thresholds = (data.wctemp_kelvins.get(), data.cctemp_kelvins.get());
    assert_eq!(thresholds, (0x157, 0x175));
}

#[test]
fn capabilities_follow_the_namespaces() {
    let mut bench = Bench::new();
    let geometry = Geometry {
        volatile_write_cache: false,
        discard: false,
        write_zeroes: false,
        read_only: true,
        ..GEOMETRY
    };
    bench.target.set_geometry(&subnqn(), 1, geometry).unwrap();
    let association = bench.ready();
    let data = read(&mut bench, &association, Identify::new(Cns::CONTROLLER, 0));
    let data = IdentifyController::from_data(&data).unwrap();
    assert_eq!(data.vwc & 1, 0);
    assert_eq!(
        data.oncs.get() & OptionalNvmCommands::DATASET_MANAGEMENT.bits(),
        0
    );
    let data = read(&mut bench, &association, Identify::new(Cns::NAMESPACE, 1));
    let data = IdentifyNamespace::from_data(&data).unwrap();
    assert_eq!((data.nsattr, data.dlfeat), (1, 0));
    let data = read(
        &mut bench,
        &association,
        Identify::new(Cns::NAMESPACE_INDEPENDENT, 1),
    );
    let data = IndependentIdentifyNamespace::from_data(&data).unwrap();
    assert_eq!((data.nsfeat & 1 << 5, data.nstat), (1 << 5, 1));
}

#[test]
fn a_namespace_tells_its_size_and_identity() {
    let mut bench = Bench::new();
    let big = NamespaceConfig {
        geometry: Geometry {
            lba_bytes: 4096,
            lbas: 1 << 33,
            ..GEOMETRY
        },
        ..namespace_config(7)
    };
    bench.target.add_namespace(&subnqn(), big).unwrap();
    let association = bench.ready();
    let data = read(&mut bench, &association, Identify::new(Cns::NAMESPACE, 7));
    let data = IdentifyNamespace::from_data(&data).unwrap();
    assert_eq!(
        (data.nsze_lbas.get(), data.ncap_lbas.get()),
        (1 << 33, 1 << 33)
    );
    let format = data.formatted_lba_format().unwrap();
    assert_eq!(format.lba_bytes(), Some(4096));
    assert_eq!((data.nguid, data.nmic), ([7; 16], 1));
    assert_eq!((data.mssrl_lbas.get(), data.mcl_lbas.get()), (256, 4096));

    let list = read(
        &mut bench,
        &association,
        Identify::new(Cns::NAMESPACE_ID_DESCRIPTORS, 7),
    );
    let ids: Vec<_> = NamespaceIdDescriptors::new(&list).collect();
    assert_eq!(
        ids,
        [
            NamespaceId::Nguid([7; 16]),
            NamespaceId::CommandSet(Csi::NVM)
        ]
    );
}

#[test]
fn a_namespace_tells_what_is_atomic_and_what_it_likes() {
    let mut bench = Bench::new();
    for (nsid, lba_bytes, optimal_io_bytes, granularity_z, nows_z) in [
        (2, 512, 4096, 7, 7),
        (3, 4096, 4096, 0, 0),
        // A RAID with stripes of 1 MiB, and a medium that says nothing.
        (4, 512, 1 << 20, 7, 2047),
        (5, 512, 0, 0, 0),
    ] {
        let config = NamespaceConfig {
            geometry: Geometry {
                lba_bytes,
                optimal_io_bytes,
                ..GEOMETRY
            },
            ..namespace_config(nsid)
        };
        bench.target.add_namespace(&subnqn(), config).unwrap();
        let association = bench.ready();
        let data = read(
            &mut bench,
            &association,
            Identify::new(Cns::NAMESPACE, nsid),
        );
        let data = IdentifyNamespace::from_data(&data).unwrap();
        assert_eq!(data.nsfeat, 1 << 1 | 1 << 4, "NSABP and OPTPERF");
        let atomic = [data.nawun_z, data.nawupf_z, data.nacwu_z];
        assert_eq!(atomic.map(|field| field.get()), [0; 3]);
        let preferred = [data.npwg_z, data.npwa_z, data.npdg_z, data.npda_z];
        assert_eq!(preferred.map(|field| field.get()), [granularity_z; 4]);
        assert_eq!(data.nows_z.get(), nows_z);
        bench.disconnect(association.conn);
    }
}

#[test]
fn lists_start_after_the_namespace_that_is_given() {
    let mut bench = Bench::new();
    for nsid in [5, 3, 1024] {
        let config = namespace_config(nsid);
        bench.target.add_namespace(&subnqn(), config).unwrap();
    }
    let association = bench.ready();
    for cns in [Cns::ACTIVE_NAMESPACES, Cns::ACTIVE_NAMESPACES_IOCS] {
        let cases: [(u32, &[u32]); 4] = [
            (0, &[1, 3, 5, 1024]),
            (1, &[3, 5, 1024]),
            (4, &[5, 1024]),
            (0xFFFF_FFFD, &[]),
        ];
        for (after, expected) in cases {
            let list = read(&mut bench, &association, Identify::new(cns, after));
            let list = NamespaceList::from_data(&list).unwrap();
            assert_eq!(list.iter().collect::<Vec<_>>(), expected);
        }
        for nsid in [0xFFFF_FFFE, 0xFFFF_FFFF] {
            assert_eq!(
                status(&mut bench, &association, Identify::new(cns, nsid)),
                Status::INVALID_NAMESPACE_OR_FORMAT.dnr().more()
            );
        }
    }
}

#[test]
fn inactive_and_invalid_namespaces_differ() {
    let mut bench = Bench::new();
    let association = bench.ready();
    for cns in [Cns::NAMESPACE, Cns::NAMESPACE_IOCS] {
        let data = read(&mut bench, &association, Identify::new(cns, 2));
        assert!(data.iter().all(|byte| *byte == 0));
        for nsid in [0, 1025, u32::MAX] {
            assert_eq!(
                status(&mut bench, &association, Identify::new(cns, nsid)),
                Status::INVALID_NAMESPACE_OR_FORMAT.dnr().more()
            );
        }
    }
    for cns in [Cns::NAMESPACE_ID_DESCRIPTORS, Cns::NAMESPACE_INDEPENDENT] {
        assert_eq!(
            status(&mut bench, &association, Identify::new(cns, 2)),
            Status::INVALID_NAMESPACE_OR_FORMAT.dnr().more()
        );
    }
}

#[test]
fn there_is_one_command_set() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let sets = Identify {
        cntid: 0xFFFF,
        ..Identify::new(Cns::COMMAND_SETS, 0)
    };
    let data = read(&mut bench, &association, sets);
    let list = CommandSetList::from_data(&data).unwrap();
    assert_eq!(list.iter().collect::<Vec<_>>(), [CommandSetVector::NVM]);
    let data = read(
        &mut bench,
        &association,
        Identify::new(Cns::CONTROLLER_IOCS, 0),
    );
    assert_eq!(NvmIdentifyController::from_data(&data).unwrap().vsl, 8);

    let zoned = |cns| Identify {
        csi: Csi::ZONED.0,
        ..Identify::new(cns, 1)
    };
    let invalid = [
        zoned(Cns::NAMESPACE_IOCS),
        zoned(Cns::CONTROLLER_IOCS),
        zoned(Cns::ACTIVE_NAMESPACES_IOCS),
        Identify {
            cntid: 0x1234,
            ..sets
        },
        Identify::new(Cns::NVM_SET_LIST, 0),
        Identify::new(Cns(0xFF), 0),
    ];
    for identify in invalid {
        assert_eq!(
            status(&mut bench, &association, identify),
            Status::INVALID_FIELD.dnr().more(),
            "{identify:?}"
        );
    }
}
