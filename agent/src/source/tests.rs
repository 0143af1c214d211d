use super::*;

#[test]
fn the_container_hash_is_upstream_s() {
    let container = Container {
        name: "test_container".to_owned(),
        image: Some("foo/image:v1".to_owned()),
        command: Some(vec!["does not count".to_owned()]),
        ..Container::default()
    };
    assert_eq!(container_hash(&container), 0x8e45_cbd0);
}
