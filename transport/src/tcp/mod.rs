//! A queue of NVMe/TCP (NVM Express TCP Transport Specification 1.1), over the PDUs of
//! [`capstan_nvme_proto::tcp`].
