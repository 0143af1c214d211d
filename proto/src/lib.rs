//! The interfaces that Skep speaks: messages, clients and servers generated from `proto/`.
//!
//! The interface files are written from the interfaces' facts (names, numbers, types); the test
//! in `upstream.rs` compares them with upstream's, so that they cannot drift.

/// CRI, between a node agent and a container runtime.
pub mod cri {
    /// `runtime.v1` of k8s.io/cri-api v0.37.2.
    #[expect(clippy::all, unused_qualifications, reason = "generated code")]
    pub mod v1 {
        tonic::include_proto!("runtime.v1");

        /// Tells who and where, never the secrets.
        impl std::fmt::Debug for AuthConfig {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("AuthConfig")
                    .field("username", &self.username)
                    .field("server_address", &self.server_address)
                    .finish_non_exhaustive()
            }
        }
    }
}

#[cfg(test)]
mod upstream;

#[cfg(test)]
mod tests {
    use crate::cri::v1::AuthConfig;

    #[test]
    fn a_printed_credential_shows_no_secret() {
        let auth = AuthConfig {
            username: "ann".into(),
            password: "hunter2".into(),
            auth: "YW5u".into(),
            server_address: "registry.test".into(),
            identity_token: "idtoken".into(),
            registry_token: "regtoken".into(),
        };
        assert_eq!(
            format!("{auth:?}"),
            r#"AuthConfig { username: "ann", server_address: "registry.test", .. }"#
        );
    }
}
