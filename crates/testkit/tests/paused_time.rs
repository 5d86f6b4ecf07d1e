//! What tokio's paused clock does beside sockets and threads.
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

#[tokio::test(start_paused = true)]
async fn loopback_tcp_times_out_spuriously() {
    let l = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = l.local_addr().unwrap();
    let h = std::thread::spawn(move || {
        use std::io::Write;
        let mut s = std::net::TcpStream::connect(addr).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        s.write_all(b"x").unwrap();
        s
    });
    let (mut s, _) = l.accept().await.unwrap();
    let mut b = [0u8; 1];
    let r = timeout(Duration::from_secs(3600), s.read(&mut b)).await;
    h.join().unwrap();
    assert!(r.is_err(), "one virtual hour passed before 50 real ms did");
}
#[tokio::test(start_paused = true)]
async fn loopback_tcp_same_runtime() {
    let l = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = l.local_addr().unwrap();
    let mut bad = 0;
    for _ in 0..200 {
        let c = tokio::spawn(async move {
            let mut s = tokio::net::TcpStream::connect(addr).await.unwrap();
            s.write_all(&[7u8; 8192]).await.unwrap();
            s
        });
        let (mut s, _) = l.accept().await.unwrap();
        let mut b = [0u8; 8192];
        if timeout(Duration::from_millis(5), s.read_exact(&mut b)).await.is_err() {
            bad += 1;
        }
        let _ = c.await;
    }
    println!("same-runtime TCP under paused time: {bad}/200 spurious time-outs of 5 ms");
}
#[tokio::test(start_paused = true)]
async fn thread_oneshot_times_out_spuriously() {
    let (tx, rx) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        let _ = tx.send(());
    });
    assert!(timeout(Duration::from_secs(30), rx).await.is_err());
}
#[tokio::test(start_paused = true)]
async fn spawn_blocking_holds_the_clock() {
    assert!(
        timeout(
            Duration::from_secs(30),
            tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(20)))
        )
        .await
        .is_ok()
    );
}
#[tokio::test(start_paused = true)]
async fn duplex_is_fine() {
    let (mut a, mut b) = tokio::io::duplex(64);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(10)).await;
        a.write_all(b"x").await.unwrap();
    });
    let mut x = [0u8; 1];
    assert!(timeout(Duration::from_secs(11), b.read_exact(&mut x)).await.is_ok());
}
#[tokio::test(start_paused = true)]
async fn std_instants_follow_the_virtual_clock() {
    let a = tokio::time::Instant::now().into_std();
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(tokio::time::Instant::now().into_std() - a, Duration::from_secs(5));
}
