//! Everything taken from `rdma-sys`, named in this one file (and [`opened`]) so that the binding
//! can be replaced: types, and functions that call a device by its context.

mod opened;

pub(super) use opened::{
    ibv_ack_async_event, ibv_ack_cq_events, ibv_alloc_pd, ibv_close_device,
    ibv_create_comp_channel, ibv_create_cq, ibv_create_srq, ibv_dealloc_pd, ibv_dereg_mr,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_destroy_qp, ibv_destroy_srq,
    ibv_free_device_list, ibv_get_async_event, ibv_get_cq_event, ibv_get_device_list,
    ibv_get_device_name, ibv_modify_qp, ibv_open_device, ibv_query_device, ibv_query_port,
    ibv_query_qp, ibv_reg_mr_iova2, open, rdma_accept, rdma_ack_cm_event, rdma_bind_addr,
    rdma_connect, rdma_create_event_channel, rdma_create_id, rdma_create_qp,
    rdma_destroy_event_channel, rdma_destroy_id, rdma_disconnect, rdma_get_cm_event, rdma_listen,
    rdma_migrate_id, rdma_notify, rdma_reject, rdma_resolve_addr, rdma_resolve_route,
};
pub(super) use rdma_sys::{
    bind_mw_t, bind_mw_tso_union_t, ibv_alloc_mw, ibv_async_event, ibv_async_event_element_t,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_dealloc_mw, ibv_device, ibv_device_attr,
    ibv_device_cap_flags, ibv_event_type, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_mw_type, ibv_pd,
    ibv_poll_cq, ibv_port_attr, ibv_port_state, ibv_post_recv, ibv_post_send, ibv_post_srq_recv,
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_recv_wr, ibv_req_notify_cq, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_transport_type, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status,
    ibv_wr_opcode, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space, rdma_t,
};

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::io::Write as _;
    use std::mem::offset_of;
    use std::process::{Command, Stdio};

    use super::*;

    /// Sizes, and offsets of fields, as Rust has them and as C writes them.
    macro_rules! layouts {
        ($($name:ident { $($field:ident $(as $c:ident)?),* })*) => {{
            let mut rust = String::new();
            let mut c = String::from(
                "#include <stdio.h>\n#include <stddef.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n",
            );
            $(
                let tag = stringify!($name);
                writeln!(rust, "{tag} {}", size_of::<$name>()).unwrap();
                writeln!(c, "printf(\"{tag} %zu\\n\", sizeof(struct {tag}));").unwrap();
                $(
                    let field = stringify!($field);
                    writeln!(rust, "{tag}.{field} {}", offset_of!($name, $field)).unwrap();
                    let in_c = [field, $(stringify!($c))?].last().copied().unwrap_or(field);
                    writeln!(
                        c,
                        "printf(\"{tag}.{field} %zu\\n\", offsetof(struct {tag}, {in_c}));"
                    )
                    .unwrap();
                )*
            )*
            c.push_str("return 0; }\n");
            (rust, c)
        }};
    }

    /// What the C compiler says of the installed headers.
    fn compiled(source: &str) -> String {
        let folder = std::env::temp_dir().join(format!("capstan-layout-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("layout");
        let mut cc = Command::new("cc")
            .args(["-x", "c", "-", "-o"])
            .arg(&program)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a C compiler, as building rdma-sys needs one");
        let mut stdin = cc.stdin.take().unwrap();
        stdin.write_all(source.as_bytes()).unwrap();
        drop(stdin);
        assert!(cc.wait().unwrap().success(), "the headers do not compile");
        let output = Command::new(&program).output().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// `rdma-sys` writes structures with unions by hand; the rest it generated from some headers.
    #[test]
    fn structures_are_those_of_the_installed_headers() {
        let (rust, c) = layouts! {
            ibv_send_wr {
                wr_id, next, sg_list, num_sge, opcode, send_flags,
                imm_data_invalidated_rkey_union as invalidate_rkey, wr, qp_type,
                bind_mw_tso_union as bind_mw
            }
            ibv_mw_bind_info { mr, addr, length, mw_access_flags }
            ibv_recv_wr { wr_id, next, sg_list, num_sge }
            ibv_sge { addr, length, lkey }
            ibv_wc {
                wr_id, status, opcode, vendor_err, byte_len,
                imm_data_invalidated_rkey_union as invalidated_rkey, qp_num, src_qp, wc_flags, slid
            }
            ibv_async_event { element, event_type }
            ibv_device_attr {
                vendor_id, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cqe,
                max_qp_rd_atom, max_qp_init_rd_atom, max_mw, max_srq, max_srq_wr
            }
            ibv_device { transport_type, name, dev_name }
            ibv_port_attr { state, max_msg_sz }
            ibv_qp_init_attr { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
            ibv_qp_attr { qp_state, timeout, retry_cnt, rnr_retry }
            ibv_qp { context, qp_num }
            ibv_srq_init_attr { srq_context, attr }
            ibv_context { device, cmd_fd, async_fd }
            ibv_comp_channel { fd }
            ibv_mr { lkey, rkey }
            ibv_mw { rkey }
            rdma_cm_id { verbs, channel, qp, route }
            rdma_cm_event { id, listen_id, event, status, param }
            rdma_conn_param {
                private_data, private_data_len, responder_resources, initiator_depth,
                flow_control, retry_count, rnr_retry_count, srq, qp_num
            }
            rdma_event_channel { fd }
        };
        assert_eq!(compiled(&c), rust);
    }
}
