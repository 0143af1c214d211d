//! Why the runtime cannot be asked for a sandbox or a container: the pod's spec, or the node,
//! lacks something.

/// `message` is the text that users see, in the waiting state and in the event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ConfigError {
    pub(crate) message: String,
}

impl ConfigError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}
