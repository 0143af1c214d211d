//! References like `$(NAME)` in env values, commands, arguments and subPathExpr (ENV-02).

use std::collections::BTreeSet;

/// Replaces each `$(NAME)` by `value_of(NAME)`. `$$` is a plain `$`, so `$$(NAME)` is the text
/// `$(NAME)`; a `$` before anything else, or without a closing bracket, stays as it is.
pub fn expand(text: &str, mut value_of: impl FnMut(&str) -> String) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    // Looked for once only: a text full of `$(` must not cost the square of its length.
    let mut may_close = true;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let Some(next) = after.chars().next() else {
            expanded.push('$');
            return expanded;
        };
        rest = match next {
            '$' => {
                expanded.push('$');
                &after[1..]
            }
            '(' => {
                let end = if may_close { after.find(')') } else { None };
                may_close = end.is_some();
                match end {
                    Some(end) => {
                        expanded.push_str(&value_of(&after[1..end]));
                        &after[end + 1..]
                    }
                    None => {
                        expanded.push_str("$(");
                        &after[1..]
                    }
                }
            }
            other => {
                expanded.push('$');
                expanded.push(other);
                &after[other.len_utf8()..]
            }
        };
    }
    expanded.push_str(rest);
    expanded
}

/// As `expand`; a name without a value stays as the text `$(NAME)`.
pub fn expand_known<'a>(text: &str, mut value_of: impl FnMut(&str) -> Option<&'a str>) -> String {
    expand(text, |name| match value_of(name) {
        Some(value) => value.to_owned(),
        None => format!("$({name})"),
    })
}

/// As `expand`; the sorted names that have no value, or an empty one, where there are any.
pub fn expand_all<'a>(
    text: &str,
    mut value_of: impl FnMut(&str) -> Option<&'a str>,
) -> Result<String, Vec<String>> {
    let mut missing = BTreeSet::new();
    let expanded = expand(text, |name| {
        let value = value_of(name).unwrap_or_default();
        if value.is_empty() {
            missing.insert(name.to_owned());
        }
        value.to_owned()
    });
    if missing.is_empty() {
        Ok(expanded)
    } else {
        Err(missing.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn known(name: &str) -> Option<&'static str> {
        match name {
            "A" => Some("a"),
            "B" => Some("$(A)"),
            "EMPTY" => Some(""),
            _ => None,
        }
    }

    #[rstest]
    #[case("$(A)", "a")]
    #[case("x-$(A)$(A)-y", "x-aa-y")]
    #[case("$(B)", "$(A)")] // a value is not expanded again
    #[case("$(NOT)", "$(NOT)")]
    #[case("$$(A)", "$(A)")]
    #[case("$$$(A)", "$a")]
    #[case("$$$$(A)", "$$(A)")]
    #[case("$", "$")]
    #[case("a$", "a$")]
    #[case("$A", "$A")]
    #[case("$é(A)", "$é(A)")]
    #[case("$(A", "$(A")]
    #[case("$($(A)", "$($(A)")]
    #[case("$()", "$()")]
    #[case("$(EMPTY)", "")]
    fn expands_as_kubernetes_does(#[case] text: &str, #[case] expanded: &str) {
        assert_eq!(expand_known(text, known), expanded);
    }

    #[test]
    fn names_what_has_no_value() {
        assert_eq!(expand_all("$(A)/x", known), Ok("a/x".into()));
        assert_eq!(
            expand_all("$(Z)/$(A)/$(EMPTY)", known),
            Err(vec!["EMPTY".into(), "Z".into()])
        );
    }

    proptest! {
        #[test]
        fn never_panics_and_keeps_text_without_dollars(text in "\\PC{0,60}") {
            let expanded = expand_known(&text, known);
            if !text.contains('$') {
                prop_assert_eq!(expanded, text);
            }
        }

        #[test]
        fn doubled_dollars_give_back_the_text(text in "[$()Ab]{0,30}") {
            let doubled = text.replace('$', "$$");
            prop_assert_eq!(expand_known(&doubled, known), text);
        }
    }

    #[test]
    fn takes_time_that_grows_with_the_text_only() {
        let text = "$(".repeat(500_000);
        assert_eq!(expand_known(&text, known), text);
    }
}
