//! Properties that hold for all values: what is encoded parses back to itself, and arbitrary bytes
//! are either refused or mean something that encodes and parses back to the same.

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{
    Abort, AdminCommand, Compare, Copy, CrossControllerReset, DatasetManagement, Directive,
    FabricsCommand, Flush, GetFeatures, GetLbaStatus, GetLogPage, Identify, IoCommand, LbaRange,
    Protection, Read, SetFeatures, Verify, Write, WriteUncorrectable, WriteZeroes,
};
use capstan_nvme_proto::copy::CopyFormat;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::error::ErrorLocation;
use capstan_nvme_proto::fabrics::{
    Authentication, Cattr, Connect, ConnectData, ConnectParameters, ConnectResponse, PropertyGet,
    PropertySet,
};
use capstan_nvme_proto::features::{FeatureId, FeatureSelect};
use capstan_nvme_proto::identify::{
    Cns, Csi, NamespaceId, NamespaceIdDescriptors, NamespaceIdType, write_namespace_ids,
};
use capstan_nvme_proto::lba_status::{ActionType, LbaStatusList};
use capstan_nvme_proto::log::{
    AnaLogHeader, CrossControllerResetLogHeader, DiscoveryLog, LogPageId,
};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::property::{Cap, Cc, Property, PropertySize};
use capstan_nvme_proto::rdma_cm::{CmAccept, CmReject, CmRequest, RejectStatus};
use capstan_nvme_proto::reservation::{
    AcquireAction, ChangePtpl, RegisterAction, ReleaseAction, ReservationAcquire,
    ReservationRegister, ReservationRelease, ReservationReport, ReservationStatus, ReservationType,
};
use capstan_nvme_proto::sgl::{Sgl, SglBase, segment_descriptors};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use proptest::collection::vec;
use proptest::prelude::*;
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

fn sgl() -> impl Strategy<Value = Sgl> {
    let base = prop_oneof![
        any::<u64>().prop_map(SglBase::Address),
        any::<u64>().prop_map(SglBase::CapsuleOffset)
    ];
    prop_oneof![
        (any::<u64>(), any::<u32>()).prop_map(|(address, length_bytes)| Sgl::DataBlock {
            address,
            length_bytes
        }),
        (any::<u64>(), any::<u32>()).prop_map(|(offset_bytes, length_bytes)| Sgl::InCapsule {
            offset_bytes,
            length_bytes
        }),
        any::<u32>().prop_map(|length_bytes| Sgl::BitBucket { length_bytes }),
        any::<u32>().prop_map(|length_bytes| Sgl::Transport { length_bytes }),
        (base, any::<u32>(), any::<bool>()).prop_map(|(base, length_bytes, last)| Sgl::Segment {
            base,
            length_bytes,
            last
        }),
        (
            any::<u64>(),
            0..=Sgl::KEYED_LENGTH_MAX_BYTES,
            any::<u32>(),
            any::<bool>()
        )
            .prop_map(|(address, length_bytes, rkey, invalidate)| Sgl::Keyed {
                address,
                length_bytes,
                rkey,
                invalidate
            }),
    ]
}

/// Bytes of a count on the wire in dwords, 0's based.
fn dword_length() -> impl Strategy<Value = u64> {
    (1..=1_u64 << 32).prop_map(|dwords| dwords * 4)
}

prop_compose! {
    fn get_log_page()(
        nsid: u32, lid: u8, lsp in 0..128_u8, rae: bool, length_bytes in dword_length(), lsi: u16,
        offset: u64, offset_is_index: bool, csi: u8, uuid_index in 0..128_u8,
    ) -> GetLogPage {
        let offset = if offset_is_index { offset } else { offset & !0b11 };
        GetLogPage {
            nsid, lid: LogPageId(lid), lsp, rae, length_bytes, lsi, offset, offset_is_index, csi,
            uuid_index,
        }
    }
}

prop_compose! {
    fn get_lba_status()(
        nsid: u32, slba: u64, length_bytes in dword_length(), action: u8, range_lbas: u16,
    ) -> GetLbaStatus {
        GetLbaStatus { nsid, slba, length_bytes, action: ActionType(action), range_lbas }
    }
}

fn admin_command() -> impl Strategy<Value = AdminCommand> {
    let identify = any::<(u32, u8, u16, u16, u8, u8)>().prop_map(
        |(nsid, cns, cntid, cnssid, csi, uuid_index)| Identify {
            nsid,
            cns: Cns(cns),
            cntid,
            cnssid,
            csi,
            uuid_index: uuid_index & 0x7F,
        },
    );
    let set = any::<(u32, u8, bool, [u32; 4], u8)>().prop_map(
        |(nsid, fid, save, [cdw11, cdw12, cdw13, cdw15], uuid_index)| SetFeatures {
            nsid,
            fid: FeatureId(fid),
            save,
            cdw11,
            cdw12,
            cdw13,
            cdw15,
            uuid_index: uuid_index & 0x7F,
        },
    );
    let get = any::<(u32, u8, u8, u32, u8)>().prop_map(|(nsid, fid, select, cdw11, uuid_index)| {
        GetFeatures {
            nsid,
            fid: FeatureId(fid),
            select: FeatureSelect(select & 0b111),
            cdw11,
            uuid_index: uuid_index & 0x7F,
        }
    });
    prop_oneof![
        get_log_page().prop_map(AdminCommand::GetLogPage),
        identify.prop_map(AdminCommand::Identify),
        any::<(u16, u16)>().prop_map(|(sqid, cid)| AdminCommand::Abort(Abort { sqid, cid })),
        set.prop_map(AdminCommand::SetFeatures),
        get.prop_map(AdminCommand::GetFeatures),
        Just(AdminCommand::AsynchronousEventRequest),
        Just(AdminCommand::KeepAlive),
        get_lba_status().prop_map(AdminCommand::GetLbaStatus),
        any::<(u16, u8, u64)>().prop_map(|(icid, ciu, cirn)| {
            AdminCommand::CrossControllerReset(CrossControllerReset { icid, ciu, cirn })
        }),
    ]
}

prop_compose! {
    fn protection()(
        pract: bool, prchk in 0..8_u8, stc: bool, tag_high: u64, tag_low: u32,
        application_tag: u16, application_tag_mask: u16,
    ) -> Protection {
        Protection {
            pract, prchk, stc, tag_high, tag_low, application_tag, application_tag_mask,
        }
    }
}

prop_compose! {
    fn range()(slba: u64, nlb in 1..=65_536_u32) -> LbaRange {
        LbaRange { slba, nlb }
    }
}

prop_compose! {
    fn directive()(dtype in 0..16_u8, dspec: u16) -> Directive {
        Directive { dtype, dspec }
    }
}

prop_compose! {
    fn copy()(
        nsid: u32, sdlba: u64, ranges in 1..=256_u16, format in 0..16_u8,
        prinfo in [0..16_u8, 0..16_u8],
        flags: [bool; 4], directive in directive(), tags: (u64, u32, u16, u16),
    ) -> Copy {
        let [stc_write, stc_read, fua, limited_retry] = flags;
        let (tag_high, tag_low, application_tag, application_tag_mask) = tags;
        Copy {
            nsid, sdlba, ranges, format: CopyFormat(format), prinfo_read: prinfo[0],
            prinfo_write: prinfo[1], stc_write, stc_read, fua, limited_retry, directive, tag_high,
            tag_low, application_tag, application_tag_mask,
        }
    }
}

fn reservation_command() -> impl Strategy<Value = IoCommand> {
    let register = (
        any::<(u32, bool)>(),
        prop::sample::select(vec![
            RegisterAction::Register,
            RegisterAction::Unregister,
            RegisterAction::Replace,
        ]),
        prop::sample::select(vec![
            ChangePtpl::NoChange,
            ChangePtpl::Clear,
            ChangePtpl::Set,
        ]),
    )
        .prop_map(
            |((nsid, ignore_existing_key), action, change_ptpl)| ReservationRegister {
                nsid,
                action,
                ignore_existing_key,
                change_ptpl,
            },
        );
    let acquire = (
        any::<(u32, bool)>(),
        prop::sample::select(vec![
            AcquireAction::Acquire,
            AcquireAction::Preempt,
            AcquireAction::PreemptAndAbort,
        ]),
        1..=6_u8,
    )
        .prop_map(
            |((nsid, ignore_existing_key), action, rtype)| ReservationAcquire {
                nsid,
                action,
                ignore_existing_key,
                reservation_type: ReservationType(rtype),
            },
        );
    let release = (
        any::<(u32, bool, u8)>(),
        prop::sample::select(vec![ReleaseAction::Release, ReleaseAction::Clear]),
    )
        .prop_map(
            |((nsid, ignore_existing_key, rtype), action)| ReservationRelease {
                nsid,
                action,
                ignore_existing_key,
                reservation_type: ReservationType(rtype),
            },
        );
    let report =
        (any::<u32>(), dword_length(), any::<bool>()).prop_map(|(nsid, length_bytes, extended)| {
            ReservationReport {
                nsid,
                length_bytes,
                extended,
            }
        });
    prop_oneof![
        register.prop_map(IoCommand::ReservationRegister),
        acquire.prop_map(IoCommand::ReservationAcquire),
        release.prop_map(IoCommand::ReservationRelease),
        report.prop_map(IoCommand::ReservationReport),
    ]
}

fn io_command() -> impl Strategy<Value = IoCommand> {
    let head = || (any::<(u32, bool, bool)>(), range(), protection());
    prop_oneof![
        any::<u32>().prop_map(|nsid| IoCommand::Flush(Flush { nsid })),
        (head(), any::<u8>()).prop_map(|(((nsid, fua, limited_retry), range, protection), dsm)| {
            IoCommand::Read(Read {
                nsid,
                range,
                fua,
                limited_retry,
                protection,
                dsm,
            })
        }),
        (head(), directive(), any::<u8>()).prop_map(
            |(((nsid, fua, limited_retry), range, protection), directive, dsm)| {
                IoCommand::Write(Write {
                    nsid,
                    range,
                    fua,
                    limited_retry,
                    protection,
                    directive,
                    dsm,
                })
            }
        ),
        (any::<u32>(), range(), directive()).prop_map(|(nsid, range, directive)| {
            IoCommand::WriteUncorrectable(WriteUncorrectable {
                nsid,
                range,
                directive,
            })
        }),
        head().prop_map(|((nsid, fua, limited_retry), range, protection)| {
            IoCommand::Compare(Compare {
                nsid,
                range,
                fua,
                limited_retry,
                protection,
            })
        }),
        head().prop_map(|((nsid, fua, limited_retry), range, protection)| {
            IoCommand::Verify(Verify {
                nsid,
                range,
                fua,
                limited_retry,
                protection,
            })
        }),
        (head(), any::<(bool, bool)>()).prop_map(
            |(((nsid, fua, limited_retry), range, protection), (deallocate, namespace_zeroes))| {
                IoCommand::WriteZeroes(WriteZeroes {
                    nsid,
                    range,
                    fua,
                    limited_retry,
                    deallocate,
                    namespace_zeroes,
                    protection,
                })
            }
        ),
        (any::<(u32, bool, bool, bool)>(), 1..=256_u16).prop_map(
            |((nsid, integral_read, integral_write, deallocate), ranges)| {
                IoCommand::DatasetManagement(DatasetManagement {
                    nsid,
                    ranges,
                    integral_read,
                    integral_write,
                    deallocate,
                })
            }
        ),
        copy().prop_map(IoCommand::Copy),
        reservation_command(),
    ]
}

fn fabrics_command() -> impl Strategy<Value = FabricsCommand> {
    let size = prop_oneof![Just(PropertySize::Four), Just(PropertySize::Eight)];
    let authentication =
        any::<(u8, u8, u8, u32)>().prop_map(|(spsp0, spsp1, secp, length_bytes)| Authentication {
            spsp0,
            spsp1,
            secp,
            length_bytes,
        });
    prop_oneof![
        (any::<(u16, u8, u32)>(), 2..=65_536_u32).prop_map(|((qid, cattr, kato_ms), sqsize)| {
            FabricsCommand::Connect(Connect {
                qid,
                sqsize,
                cattr: Cattr(cattr),
                kato_ms,
            })
        }),
        (any::<u32>(), size.clone()).prop_map(|(offset, size)| {
            FabricsCommand::PropertyGet(PropertyGet {
                property: Property(offset),
                size,
            })
        }),
        (any::<u32>(), size, any::<u64>()).prop_map(|(offset, size, value)| {
            let value = match size {
                PropertySize::Four => value & u64::from(u32::MAX),
                PropertySize::Eight => value,
            };
            FabricsCommand::PropertySet(PropertySet {
                property: Property(offset),
                size,
                value,
            })
        }),
        Just(FabricsCommand::Disconnect),
        authentication
            .clone()
            .prop_map(FabricsCommand::AuthenticationSend),
        authentication.prop_map(FabricsCommand::AuthenticationReceive),
    ]
}

fn nqn() -> impl Strategy<Value = Nqn> {
    "\\PC{1,223}".prop_filter_map("over 223 bytes", |name| Nqn::new(&name).ok())
}

proptest! {
    #[test]
    fn admin_commands_survive_the_wire(command in admin_command(), cid: u16, sgl in sgl()) {
        let sqe = command.encode(cid, sgl);
        prop_assert_eq!(AdminCommand::parse(&sqe), Ok(command));
        prop_assert_eq!(sqe.sgl(), Ok(sgl));
        prop_assert_eq!(sqe.cid.get(), cid);
    }

    #[test]
    fn io_commands_survive_the_wire(command in io_command(), cid: u16, sgl in sgl()) {
        let sqe = command.encode(cid, sgl);
        prop_assert_eq!(IoCommand::parse(&sqe), Ok(command));
        prop_assert_eq!(sqe.sgl(), Ok(sgl));
        prop_assert_eq!(sqe.cid.get(), cid);
    }

    #[test]
    fn fabrics_commands_survive_the_wire(command in fabrics_command(), cid: u16, sgl in sgl()) {
        let sqe = command.encode(cid, sgl);
        prop_assert_eq!(FabricsCommand::parse(&sqe), Ok(command));
        prop_assert_eq!(sqe.sgl(), Ok(sgl));
        prop_assert_eq!(sqe.cid.get(), cid);
    }

    #[test]
    fn arbitrary_entries_mean_one_thing_or_nothing(bytes: [[u8; 32]; 2], opcode in 0..0x90_u8) {
        let mut sqe = Sqe::read_from_bytes(bytes.as_bytes()).expect("64 bytes");
        sqe.opcode = opcode;
        let (cid, sgl) = (sqe.cid.get(), sqe.sgl().unwrap_or(Sgl::EMPTY));
        if let Ok(command) = AdminCommand::parse(&sqe) {
            prop_assert_eq!(AdminCommand::parse(&command.encode(cid, sgl)), Ok(command));
        }
        if let Ok(command) = IoCommand::parse(&sqe) {
            prop_assert_eq!(IoCommand::parse(&command.encode(cid, sgl)), Ok(command));
        }
        sqe.opcode = 0x7F;
        if let Ok(command) = FabricsCommand::parse(&sqe) {
            prop_assert_eq!(FabricsCommand::parse(&command.encode(cid, sgl)), Ok(command));
        }
    }

    #[test]
    fn capsule_ranges_lie_inside_the_capsule(offset: u64, length: u32, data in 0..100_000_usize) {
        for sgl in [
            Sgl::InCapsule { offset_bytes: offset, length_bytes: length },
            Sgl::InCapsule { offset_bytes: offset % 20_000, length_bytes: length % 20_000 },
        ] {
            if let Ok(range) = sgl.capsule_range(data) {
                prop_assert!(range.start <= range.end && range.end <= data);
                prop_assert_eq!(u32::try_from(range.len()), Ok(sgl.length_bytes()));
            }
        }
    }

    #[test]
    fn segments_give_as_many_descriptors_as_they_hold(list in vec(sgl(), 1..20)) {
        let bytes: Vec<u8> =
            list.iter().flat_map(|sgl| sgl.encode().as_bytes().to_vec()).collect();
        let parsed = segment_descriptors(&bytes, 19)
            .expect("whole descriptors")
            .collect::<Result<Vec<_>, _>>();
        prop_assert_eq!(parsed.as_deref(), Ok(&list[..]));
    }

    #[test]
    fn completions_and_statuses_keep_every_bit(
        bits in 0..0x8000_u16, cid: u16, sqhd: u16, dw0: u32,
    ) {
        let status = Status::from_bits(bits);
        let mut rebuilt = Status::new(status.sct(), status.sc()).with_crd(status.crd());
        if status.is_more() {
            rebuilt = rebuilt.more();
        }
        if status.is_dnr() {
            rebuilt = rebuilt.dnr();
        }
        prop_assert_eq!(rebuilt.to_bits(), bits);
        let cqe = Cqe::new(cid, sqhd, status, dw0);
        prop_assert_eq!(Cqe::from_capsule(cqe.as_bytes()).map(Cqe::status), Some(status));
        prop_assert_eq!((cqe.cid.get(), cqe.sqhd.get(), cqe.dw0.get()), (cid, sqhd, dw0));
    }

    #[test]
    fn error_locations_survive_a_connect_response(offset: u16, byte in 1..64_u8) {
        for location in [ErrorLocation::sqe(byte), ErrorLocation::Data { offset }] {
            prop_assert_eq!(ErrorLocation::from_connect_dw0(location.connect_dw0()), location);
        }
    }

    #[test]
    fn connect_data_and_responses_survive_the_wire(
        subnqn in nqn(), hostnqn in nqn(), hostid: [u8; 16], cntlid: u16, flags: (bool, bool),
    ) {
        let parameters = ConnectParameters { hostid: HostId(hostid), cntlid, subnqn, hostnqn };
        let data = parameters.encode();
        let parsed = ConnectData::from_data(data.as_bytes()).and_then(ConnectData::parse);
        prop_assert_eq!(parsed, Ok(parameters));
        let response = ConnectResponse {
            cntlid,
            authentication_required: flags.0,
            secure_channel_required: flags.1,
        };
        prop_assert_eq!(ConnectResponse::decode(response.encode()), response);
    }

    #[test]
    fn nqns_are_refused_or_kept_as_they_are(name in "\\PC{0,300}", uuid: u128) {
        match Nqn::new(&name) {
            Ok(nqn) => {
                prop_assert_eq!(nqn.as_str(), name);
                prop_assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
            }
            Err(_) => prop_assert!(name.is_empty() || name.len() > 223),
        }
        let nqn = Nqn::from_uuid(Uuid::from_u128(uuid));
        prop_assert_eq!(nqn.uuid(), Some(Uuid::from_u128(uuid)));
        prop_assert_eq!(nqn.check_form(), Ok(()));
    }

    #[test]
    fn private_data_survives_the_wire(
        qid: u16, hrqsize in 1..=u16::MAX, hsqsize in 2..=65_536_u32, cntlid: u16,
        crqsize: u16, sts: u16, padding in vec(any::<u8>(), 0..200),
    ) {
        let request = CmRequest { qid, hrqsize, hsqsize, cntlid };
        let mut wire = request.encode().expect("in range").as_bytes().to_vec();
        wire.extend_from_slice(&padding);
        prop_assert_eq!(CmRequest::parse(&wire), Ok(request));
        let accept = CmAccept { crqsize };
        prop_assert_eq!(CmAccept::parse(accept.encode().as_bytes()), Ok(accept));
        let reject = CmReject { status: RejectStatus(sts) };
        prop_assert_eq!(CmReject::parse(reject.encode().as_bytes()), Ok(reject));
    }

    #[test]
    fn properties_and_events_settle_after_one_decode(value: u64, dw0: u32) {
        let cap = Cap::decode(value);
        prop_assert_eq!(Cap::decode(cap.encode()), cap);
        let cc = Cc::decode(dw0);
        prop_assert_eq!(Cc::decode(cc.encode()), cc);
        let event = AsyncEvent::decode(dw0);
        prop_assert_eq!(AsyncEvent::decode(event.encode()), event);
    }

    #[test]
    fn namespace_identifiers_survive_the_wire(
        eui64: [u8; 8], nguid: [u8; 16], uuid: u128, csi: u8,
        id_type in 5..=u8::MAX, bytes in vec(any::<u8>(), 1..255),
    ) {
        let ids = [
            NamespaceId::Eui64(eui64),
            NamespaceId::Nguid(nguid),
            NamespaceId::Unknown { id_type: NamespaceIdType(id_type), bytes: &bytes },
            NamespaceId::Uuid(Uuid::from_u128(uuid)),
            NamespaceId::CommandSet(Csi(csi)),
        ];
        let mut data = [0xEE; 4096];
        prop_assert_eq!(write_namespace_ids(&mut data, ids), Ok(()));
        prop_assert_eq!(NamespaceIdDescriptors::new(&data).collect::<Vec<_>>(), ids);
    }

    #[test]
    fn lists_from_arbitrary_bytes_stay_inside_them(bytes in vec(any::<u8>(), 0..6000)) {
        for id in NamespaceIdDescriptors::new(&bytes) {
            if let NamespaceId::Unknown { bytes: id, .. } = id {
                prop_assert!(id.len() < 256);
            }
        }
        if let Some((header, groups)) = AnaLogHeader::parse(&bytes) {
            prop_assert!(groups.count() <= usize::from(header.groups.get()));
        }
        if let Some((header, entries)) = CrossControllerResetLogHeader::parse(&bytes) {
            prop_assert!(entries.len() <= usize::from(header.entries.get()));
            prop_assert!(size_of_val(header) + size_of_val(entries) <= bytes.len());
        }
        if let Some((head, descriptors)) = LbaStatusList::parse(&bytes) {
            prop_assert!(descriptors.len() as u64 <= u64::from(head.descriptors.get()));
            prop_assert!(size_of_val(head) + size_of_val(descriptors) <= bytes.len());
        }
        if let Ok(log) = DiscoveryLog::parse(&bytes) {
            prop_assert!(log.entries.len() * 1024 + 1024 <= bytes.len());
        }
        for extended in [false, true] {
            if let Ok(status) = ReservationStatus::parse(&bytes, extended) {
                prop_assert!(size_of_val(status.header) <= bytes.len());
            }
        }
    }
}
