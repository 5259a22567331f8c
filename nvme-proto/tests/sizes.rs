//! One table of every structure on the wire: bytes, and alignment 1.

use capstan_nvme_proto::copy::{CopyRangeFormat0, CopyRangeFormat1};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::dataset::DsmRange;
use capstan_nvme_proto::fabrics::ConnectData;
use capstan_nvme_proto::features::{HostBehaviorSupport, TimestampData};
use capstan_nvme_proto::identify::{
    CapstanBlock, CommandSetList, IdentifyController, IdentifyNamespace,
    IndependentIdentifyNamespace, LbaFormat, NamespaceList, NvmIdentifyController,
    NvmIdentifyNamespace, PowerStateDescriptor,
};
use capstan_nvme_proto::lba_status::{LbaStatusDescriptor, LbaStatusList};
use capstan_nvme_proto::log::{
    AnaGroupHeader, AnaLogHeader, CommandEffectsLog, CrossControllerResetEntry,
    CrossControllerResetLogHeader, DiscoveryLogEntry, DiscoveryLogHeader, ErrorInformationEntry,
    FirmwareSlotLog, HealthLog, RdmaTsas, ReservationNotificationLog, SupportedLogPages, TcpTsas,
};
use capstan_nvme_proto::nqn::HostId;
use capstan_nvme_proto::rdma_cm::{AcceptPrivateData, RejectPrivateData, RequestPrivateData};
use capstan_nvme_proto::reservation::{
    AcquireData, ExtendedRegistrant, RegisterData, Registrant, ReleaseData, ReservationStatusHeader,
};
use capstan_nvme_proto::sgl::SglDescriptor;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::pdu::{
    CapsuleCmd, CapsuleResp, CommonHeader, IcReq, IcResp, TermReq, TransferHeader,
};

macro_rules! table {
    ($($type:ty => $bytes:literal,)+) => {
        [$((stringify!($type), size_of::<$type>(), align_of::<$type>(), $bytes),)+]
    };
}

#[test]
fn every_wire_structure_has_its_size_and_alignment_one() {
    let table = table! {
        Sqe => 64,
        Cqe => 16,
        SglDescriptor => 16,
        ConnectData => 1024,
        HostId => 16,
        RequestPrivateData => 32,
        AcceptPrivateData => 32,
        RejectPrivateData => 4,
        IdentifyController => 4096,
        CapstanBlock => 64,
        PowerStateDescriptor => 32,
        IdentifyNamespace => 4096,
        LbaFormat => 4,
        IndependentIdentifyNamespace => 4096,
        NvmIdentifyNamespace => 4096,
        NvmIdentifyController => 4096,
        NamespaceList => 4096,
        CommandSetList => 4096,
        SupportedLogPages => 1024,
        ErrorInformationEntry => 64,
        HealthLog => 512,
        FirmwareSlotLog => 512,
        CommandEffectsLog => 4096,
        AnaLogHeader => 16,
        AnaGroupHeader => 32,
        CrossControllerResetLogHeader => 8,
        CrossControllerResetEntry => 8,
        LbaStatusList => 8,
        LbaStatusDescriptor => 16,
        DiscoveryLogHeader => 1024,
        DiscoveryLogEntry => 1024,
        RdmaTsas => 256,
        TcpTsas => 256,
        CommonHeader => 8,
        IcReq => 128,
        IcResp => 128,
        TermReq => 24,
        CapsuleCmd => 72,
        CapsuleResp => 24,
        TransferHeader => 24,
        ReservationNotificationLog => 64,
        TimestampData => 8,
        HostBehaviorSupport => 512,
        DsmRange => 16,
        CopyRangeFormat0 => 32,
        CopyRangeFormat1 => 40,
        RegisterData => 16,
        AcquireData => 16,
        ReleaseData => 8,
        ReservationStatusHeader => 24,
        Registrant => 24,
        ExtendedRegistrant => 64,
    };
    for (name, size, align, expected) in table {
        assert_eq!((size, align), (expected, 1), "{name}");
    }
}
