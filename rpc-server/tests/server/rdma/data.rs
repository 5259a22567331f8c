//! Messages and data, as they come and go.

use capstan_nfs_client::rdma::{CallOf, How, OFFER, RdmaClient};
use capstan_rdma::contract::{Access, SendOp};
use capstan_rpc_server::Settings;
use capstan_rpc_server::limits::DATA_MIN_BYTES;
use capstan_rpcrdma::chunks::Segment;
use capstan_rpcrdma::header::{Fault, Procedure};
use capstan_rpcrdma::private::Offer;
use capstan_rpcrdma::xdr::Reader;

use super::{
    fault, give, give_inline, header, inline_reply, lengths, null, rdma, start, take_reduced,
    taken, u32_of,
};
use crate::harness::message;
use crate::program::{NULL, TAKE, data, sum};

cases!(
    calls_without_chunks_are_answered,
    data_is_pulled_from_several_segments,
    a_whole_message_is_pulled_and_data_beside_it,
    data_is_pushed_to_several_chunks_of_several_segments,
    a_chunk_without_segments_asks_for_its_data_inline,
    a_long_reply_goes_to_the_reply_chunk,
    the_only_key_of_a_call_is_invalidated,
    a_client_that_says_nothing_gets_short_sends,
    calls_wait_for_buffers_and_all_are_answered,
);

fn calls_without_chunks_are_answered(how: How) {
    let (server, _program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    assert_eq!(
        (client.offer.send_bytes, client.offer.receive_bytes),
        (4096, 4096)
    );
    assert!(client.offer.remote_invalidation);
    for xid in 0..300 {
        null(&mut client, xid);
    }
    let bytes = data(3000);
    let call = message(7, TAKE, |writer| writer.opaque(&bytes).unwrap());
    client.send_call(&CallOf::inline(7, &call));
    let reply = client.reply();
    assert_eq!(taken(&inline_reply(&reply, 7).0), (3000, sum(&bytes)));
    client.send_call(&CallOf::inline(8, &give_inline(8, 4000)));
    let (reply, _) = inline_reply(&client.reply(), 8);
    assert!(reply[4..] == data(4000));
}

fn data_is_pulled_from_several_segments(how: How) {
    let (server, _program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    for (length, cuts) in [
        (5, vec![5]),
        (100_001, vec![1, 50_000, 0, 50_000]),
        (1 << 20, vec![131_072; 8]),
        (1 << 20, vec![32_768; 32]),
    ] {
        let bytes = data(length);
        let buffer = client.memory(&bytes);
        let segments = client.segments(&buffer, &cuts);
        let (position, call) = take_reduced(7, length);
        client.send_call(&CallOf::inline(7, &call).read(position, &segments));
        let reply = client.reply();
        let (reply, _) = inline_reply(&reply, 7);
        assert_eq!(taken(&reply), (length, sum(&bytes)));
    }
}

fn a_whole_message_is_pulled_and_data_beside_it(how: How) {
    let (server, _program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    let bytes = data(60_000);
    let call = message(9, TAKE, |writer| writer.opaque(&bytes).unwrap());
    let buffer = client.memory(&call);
    let cuts = [30_000, u32_of(call.len()) - 30_000];
    let segments = client.segments(&buffer, &cuts);
    let no_message = |xid| CallOf {
        message: None,
        ..CallOf::inline(xid, &[])
    };
    client.send_call(&no_message(9).read(0, &segments));
    let (reply, _) = inline_reply(&client.reply(), 9);
    assert_eq!(taken(&reply), (60_000, sum(&bytes)));
    // The same with the data in a chunk of its own.
    let (position, call) = take_reduced(10, bytes.len());
    let (head, body) = (client.memory(&call), client.memory(&bytes));
    let head = client.segments(&head, &[u32_of(call.len())]);
    let body = client.segments(&body, &[u32_of(bytes.len())]);
    client.send_call(&no_message(10).read(position, &body).read(0, &head));
    let (reply, _) = inline_reply(&client.reply(), 10);
    assert_eq!(taken(&reply), (60_000, sum(&bytes)));
}

fn data_is_pushed_to_several_chunks_of_several_segments(how: How) {
    let (server, _program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    let buffers = [1 << 20, 8192, 4096].map(|length| client.memory(&vec![0xEE; length]));
    let chunks = [
        client.segments(&buffers[0], &[131_072; 8]),
        client.segments(&buffers[1], &[100, 8092]),
        client.segments(&buffers[2], &[4096]),
    ];
    for sizes in [[1 << 20, 103], [262_145, 0]] {
        let call = give(3, &sizes);
        let mut sent = CallOf::inline(3, &call);
        for chunk in &chunks {
            sent = sent.write(chunk.clone());
        }
        client.send_call(&sent);
        let reply = client.reply();
        let header = header(&reply);
        assert_eq!((header.xid, header.procedure), (3, Procedure::Msg));
        let pushed: Vec<_> = header
            .writes
            .chunks()
            .map(|of| lengths(of.segments()))
            .collect();
        assert_eq!(pushed.len(), 3);
        for (chunk, size) in pushed.iter().zip([sizes[0], sizes[1], 0]) {
            assert_eq!(chunk.iter().sum::<u32>(), u32_of(size));
        }
        for (buffer, size) in buffers.iter().zip(sizes) {
            let mut came = vec![0; size];
            buffer.copy_to(0, &mut came);
            assert!(came == data(size), "{size} bytes");
        }
        // The counts, which stay in the message, and the end.
        let mut reader = Reader::new(&header.inline[8..]);
        let counts = [reader.u32("count"), reader.u32("count")];
        assert_eq!(counts, sizes.map(|size| Ok(u32_of(size))));
        assert_eq!(
            (reader.u32("end"), reader.finish()),
            (Ok(0xE0E0_E0E0), Ok(()))
        );
    }
    let mut untouched = vec![0; 4096];
    buffers[2].copy_to(0, &mut untouched);
    assert!(untouched == vec![0xEE; 4096]);
}

fn a_chunk_without_segments_asks_for_its_data_inline(how: How) {
    let (server, _program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    let call = give(3, &[1001]);
    client.send_call(&CallOf::inline(3, &call).write(Vec::new()));
    let reply = client.reply();
    let mut reader = Reader::new(&header(&reply).inline[8..]);
    assert!(reader.opaque("data", 2000).unwrap() == data(1001));
    assert_eq!(header(&reply).writes.chunks().count(), 1);
}

fn a_long_reply_goes_to_the_reply_chunk(how: How) {
    let (server, _program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), how);
    let buffer = client.memory(&vec![0xEE; 1 << 20]);
    let chunk = client.segments(&buffer, &[4096, 100_000, 944_480]);
    for length in [4097, 100_000, 1_000_001] {
        let call = give_inline(5, length);
        client.send_call(&CallOf {
            reply: Some(chunk.clone()),
            ..CallOf::inline(5, &call)
        });
        let reply = client.reply();
        let header = header(&reply);
        assert_eq!(
            (header.procedure, header.inline),
            (Procedure::NoMsg, &[][..])
        );
        let pushed = lengths(header.reply.expect("a reply chunk").segments());
        let pushed_bytes = usize::try_from(pushed.iter().sum::<u32>()).unwrap();
        assert_eq!(pushed_bytes, 12 + length.next_multiple_of(4));
        let mut came = vec![0; pushed_bytes];
        buffer.copy_to(0, &mut came);
        assert_eq!(
            came[..12],
            [0, 0, 0, 5, 0, 0, 0, 1, came[8], came[9], came[10], came[11]]
        );
        assert!(came[12..12 + length] == data(length));
    }
    // A short one is sent, and the chunk is not used.
    let call = give_inline(6, 100);
    client.send_call(&CallOf {
        reply: Some(chunk),
        ..CallOf::inline(6, &call)
    });
    let reply = client.reply();
    assert!(header(&reply).reply.is_none());
    assert_eq!(inline_reply(&reply, 6).0.len(), 104);
}

fn the_only_key_of_a_call_is_invalidated(how: How) {
    let (server, _program) = start(rdma());
    let offer = Offer {
        remote_invalidation: true,
        ..OFFER
    };
    let mut client = RdmaClient::connect(
        server.address(),
        How {
            offer: Some(offer),
            ..how
        },
    );
    let buffer = client.memory(&[0; 8192]);
    let mut window = client.pd.allocate_window().unwrap();
    let rkey = window.next_rkey();
    let bind = SendOp::BindWindow {
        rkey,
        lkey: client.lkey(),
        addr: buffer.addr(),
        len_bytes: 8192,
        access: Access::REMOTE_WRITE,
    };
    client.post(bind, &[]);
    let segment = Segment {
        handle: rkey.0,
        length_bytes: 8192,
        offset: buffer.addr(),
    };
    client.send_call(&CallOf::inline(3, &give(3, &[5000])).write(vec![segment]));
    let (reply, invalidated) = client.next_message();
    assert_eq!(header(&reply).xid, 3);
    assert_eq!(invalidated, Some(rkey));
    // A call without a key invalidates none.
    client.send_call(&CallOf::inline(4, &message(4, NULL, |_| {})));
    assert_eq!(client.next_message().1, None);
}

fn a_client_that_says_nothing_gets_short_sends(how: How) {
    let (server, _program) = start(rdma());
    let mut client = RdmaClient::connect(server.address(), How { offer: None, ..how });
    client.send_call(&CallOf::inline(1, &give_inline(1, 980)));
    assert_eq!(inline_reply(&client.reply(), 1).0.len(), 984);
    client.send_call(&CallOf::inline(2, &give_inline(2, 1000)));
    assert_eq!(fault(&client.reply()), (2, Fault::Chunk));
}

fn calls_wait_for_buffers_and_all_are_answered(how: How) {
    let (server, _program) = start(Settings {
        data_bytes: DATA_MIN_BYTES,
        ..rdma()
    });
    let address = server.address();
    let run = move || {
        let mut client = RdmaClient::connect(address, how);
        null(&mut client, 0);
        let bytes = data(1 << 20);
        let source = client.memory(&bytes);
        let source = client.segments(&source, &[262_144; 4]);
        let sinks: Vec<_> = (0..64).map(|_| client.memory(&vec![0; 1 << 20])).collect();
        let mut credits = 1;
        let (mut sent, mut answered) = (0_u32, 0);
        while answered < 64 {
            while sent < 64 && sent - answered < credits {
                let sink = client.segments(&sinks[usize::try_from(sent).unwrap()], &[1 << 20]);
                let xid = 100 + sent;
                if sent.is_multiple_of(2) {
                    let (position, call) = take_reduced(xid, 1 << 20);
                    client.send_call(&CallOf::inline(xid, &call).read(position, &source));
                } else {
                    client.send_call(&CallOf::inline(xid, &give(xid, &[1 << 20])).write(sink));
                }
                sent += 1;
            }
            let reply = client.reply();
            let header = header(&reply);
            credits = header.credits;
            let number = header.xid - 100;
            if number.is_multiple_of(2) {
                assert_eq!(taken(&header.inline[8..]), (1 << 20, sum(&bytes)));
            } else {
                let mut came = vec![0; 1 << 20];
                sinks[usize::try_from(number).unwrap()].copy_to(0, &mut came);
                assert!(came == bytes);
            }
            answered += 1;
        }
    };
    let clients = [std::thread::spawn(run), std::thread::spawn(run)];
    for client in clients {
        client.join().unwrap();
    }
}
