//! A smoke test on the containerd that the distribution has installed: 1.6 on Debian 12, which has
//! no event stream.

use rstest::rstest;

use crate::{modes, node::Node};

#[rstest]
#[case::kernel("kernel")]
#[case::listing("listing")]
#[tokio::test]
async fn the_distributions_containerd_runs_pods(#[case] mode: &str) {
    let program = std::path::Path::new("/usr/bin/containerd");
    assert!(program.is_file(), "{} is not installed", program.display());
    let node = Node::builder()
        .of_distribution()
        .mode(mode)
        .max_restart_period("1s")
        .up()
        .await;
    modes::behaves(node, mode).await;
}
