//! What SPDK's host sends, command by command, as `spdk_nvme_perf` does with its default options
//! (`lib/nvme` of v26.09, which no package registry has): without a Host NQN, with an Admin queue
//! of 32 entries, I/O queues as long as the controller allows, and a Keep Alive Timeout of 10 s. At
//! its end it takes Command Identifiers that its Asynchronous Event Requests still have.

use capstan_nvme_proto::command::{
    AdminCommand, FabricsCommand, GetFeatures, GetLogPage, Identify, IoCommand, LbaRange, Read,
    SetFeatures, Write,
};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::fabrics::{ConnectParameters, PropertyGet, PropertySet};
use capstan_nvme_proto::features::FeatureId;
use capstan_nvme_proto::identify::{Cns, IdentifyController, IdentifyNamespace, NamespaceList};
use capstan_nvme_proto::log::LogPageId;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::property::{Cap, Cc, Csts, Property, ShutdownNotification, ShutdownStatus};
use capstan_nvme_proto::sgl::Sgl;
use capstan_rdma::iwarp::Config;
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::wire_host::{Data, Manner, Queue, Wire, WireHost, connect_data};

const KATO_MS: u32 = 10_000;
/// AERs it has outstanding at most.
const EVENTS_MAX: u16 = 8;

fn get(property: Property) -> FabricsCommand {
    let size = property.size().expect("a property of the standard");
    FabricsCommand::PropertyGet(PropertyGet { property, size })
}

fn set_cc(cc: Cc) -> FabricsCommand {
    FabricsCommand::PropertySet(PropertySet {
        property: Property::CC,
        size: Property::CC.size().expect("CC has a size"),
        value: cc.encode().into(),
    })
}

struct Spdk {
    host: WireHost,
    entries: u16,
}

impl Spdk {
    fn property(&mut self, command: FabricsCommand) -> u64 {
        let sqe = command.encode(0, Sgl::EMPTY);
        let (cqe, _) = self.host.run(Queue::Admin, sqe, Data::None);
        assert!(cqe.status().is_success(), "{command:?}: {:?}", cqe.status());
        cqe.result()
    }

    fn admin(&mut self, command: &AdminCommand) -> (Cqe, Vec<u8>) {
        let bytes = u32::try_from(command.data_transfer().bytes()).expect("small");
        let data = match bytes {
            0 => Data::None,
            bytes => Data::Pushed(bytes),
        };
        let sqe = command.encode(0, Sgl::EMPTY);
        let (cqe, data) = self.host.run(Queue::Admin, sqe, data);
        assert!(cqe.status().is_success(), "{command:?}: {:?}", cqe.status());
        (cqe, data)
    }

    fn identify(&mut self, cns: Cns, nsid: u32) -> Vec<u8> {
        self.admin(&AdminCommand::Identify(Identify::new(cns, nsid)))
            .1
    }

    /// Its walk through the states of a controller, up to a connected I/O queue.
    fn attach(target: &TestTarget) -> Self {
        let parameters = ConnectParameters {
            hostnqn: Nqn::NONE,
            ..connect_data(1)
        };
        let manner = Manner {
            io_entries: 128,
            kato_ms: KATO_MS,
        };
        let wire = Wire::new(Config::default(), 4096, 4 << 20);
        let host = WireHost::connect_admin(wire, target.addresses[0], parameters, manner);
        let mut spdk = Self { host, entries: 0 };
        spdk.property(get(Property::VS));
        let cap = Cap::decode(spdk.property(get(Property::CAP)));
        spdk.entries = u16::try_from(cap.mqes).expect("16 bits");
        assert_eq!(
            spdk.entries, manner.io_entries,
            "as many as the controller allows"
        );
        let cc = u32::try_from(spdk.property(get(Property::CC))).expect("32 bits");
        assert!(!Cc::decode(cc).en, "a new controller is disabled");
        let ready = |spdk: &mut Self| {
            let csts = u32::try_from(spdk.property(get(Property::CSTS))).expect("32 bits");
            Csts::decode(csts)
        };
        assert!(!ready(&mut spdk).rdy);
        spdk.property(get(Property::CC));
        spdk.property(set_cc(Cc::ENABLE_NVM));
        spdk.host.wait_until_ready();
        let data = spdk.identify(Cns::CONTROLLER, 0);
        let controller = IdentifyController::from_data(&data)
            .expect("4096 bytes")
            .clone();
        let fid = FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION;
        spdk.admin(&AdminCommand::SetFeatures(SetFeatures::new(
            fid,
            controller.oaes.get(),
        )));
        let events = EVENTS_MAX.min(u16::from(controller.aerl_z) + 1);
        for _ in 0..events {
            let sqe = AdminCommand::AsynchronousEventRequest.encode(0, Sgl::EMPTY);
            spdk.host.send(Queue::Admin, sqe, Data::None);
        }
        let fid = FeatureId::KEEP_ALIVE_TIMER;
        let (cqe, _) = spdk.admin(&AdminCommand::GetFeatures(GetFeatures::new(fid)));
        assert_eq!(cqe.dw0.get(), KATO_MS);
        let fid = FeatureId::NUMBER_OF_QUEUES;
        spdk.admin(&AdminCommand::SetFeatures(SetFeatures::new(fid, 0)));
        let data = spdk.identify(Cns::ACTIVE_NAMESPACES, 0);
        let list = NamespaceList::from_data(&data).expect("4096 bytes");
        assert_eq!(list.iter().collect::<Vec<_>>(), [1]);
        let data = spdk.identify(Cns::NAMESPACE, 1);
        let namespace = IdentifyNamespace::from_data(&data).expect("4096 bytes");
        assert!(namespace.nsze_lbas.get() > 0);
        spdk.identify(Cns::NAMESPACE_ID_DESCRIPTORS, 1);
        // ANA: as much as there may be of it.
        let bytes = 16 + u64::from(controller.nanagrpid.get()) * 32 + 4 * 1024;
        spdk.admin(&AdminCommand::GetLogPage(GetLogPage::new(
            LogPageId::ANA,
            bytes,
        )));
        spdk.admin(&AdminCommand::KeepAlive);
        assert!(spdk.host.connect_io().is_success());
        spdk
    }

    /// A queue full of writes, then of reads.
    fn work(&mut self) {
        let range = |lba| LbaRange { slba: lba, nlb: 1 };
        let blocks = self.entries - 1;
        let cids: Vec<_> = (0..blocks)
            .map(|lba| {
                let write = IoCommand::Write(Write::new(1, range(lba.into())));
                let data = [u8::try_from(lba).expect("few"); 4096];
                self.host
                    .send(Queue::Io, write.encode(0, Sgl::EMPTY), Data::Pulled(&data))
            })
            .collect();
        for cid in cids {
            assert!(self.host.answer(Queue::Io, cid).0.status().is_success());
        }
        let cids: Vec<_> = (0..blocks)
            .map(|lba| {
                let read = IoCommand::Read(Read::new(1, range(lba.into())));
                self.host
                    .send(Queue::Io, read.encode(0, Sgl::EMPTY), Data::Pushed(4096))
            })
            .collect();
        for (lba, cid) in cids.into_iter().enumerate() {
            let (cqe, data) = self.host.answer(Queue::Io, cid);
            assert!(cqe.status().is_success(), "{:?}", cqe.status());
            assert!(data.iter().all(|byte| usize::from(*byte) == lba));
        }
    }

    /// Ends the I/O queue and shuts the controller down, with the identifier of its first AER.
    fn detach(mut self) {
        self.host.disconnect(Queue::Io);
        let outstanding = self.host.outstanding_admin();
        let event = *outstanding.first().expect("AERs are outstanding");
        let mut run = |command: FabricsCommand| {
            let sqe = command.encode(0, Sgl::EMPTY);
            let (cqe, _) = self.host.run_as(Queue::Admin, event, sqe, Data::None);
            assert!(cqe.status().is_success(), "{command:?}: {:?}", cqe.status());
            u32::try_from(cqe.result()).expect("32 bits")
        };
        let mut cc = Cc::decode(run(get(Property::CC)));
        assert!(cc.en);
        cc.shn = ShutdownNotification::NORMAL;
        run(set_cc(cc));
        let start = std::time::Instant::now();
        while Csts::decode(run(get(Property::CSTS))).shst != ShutdownStatus::COMPLETE {
            assert!(start.elapsed().as_secs() < 10, "no end of the shutdown");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

#[test]
fn a_host_of_spdk_attaches_works_and_detaches() {
    let disk = tempfile::NamedTempFile::new().unwrap();
    disk.as_file().set_len(1 << 20).unwrap();
    for volume in [
        "ram = \"1MiB\"".to_owned(),
        // With a cache that the shutdown writes back.
        format!("path = \"{}\"", disk.path().display()),
    ] {
        let target = TestTarget::start(&format!(
            "[target]\nreactors = 1\n[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\n{volume}\nlba = 4096\n"
        ));
        // One run after the other, as people measure.
        for _ in 0..3 {
            let mut spdk = Spdk::attach(&target);
            spdk.work();
            spdk.detach();
        }
        target.stop();
    }
}
