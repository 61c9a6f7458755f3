//! A Rust file as tokens: what is code, what is a test, where a function begins and ends.
//!
//! The lexer is `proc-macro2`'s, so a comment or a string that says a forbidden word is no finding, and a
//! raw string or a lifetime cannot confuse the check.

use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// What the checks need to know of one Rust file.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The comment that the file opens with: its lines up to the first that is no comment.
    pub opening: Vec<String>,
    /// Number of lines.
    pub lines: usize,
    /// Every identifier and keyword in code, with its line.
    pub idents: Vec<Ident>,
    /// Lines of items under `#[cfg(test)]`.
    pub tests: Vec<RangeInclusive<usize>>,
    /// Functions with a body.
    pub functions: Vec<Function>,
    /// Inner attributes of the file (`#![...]`), without spaces, such as `forbid(unsafe_code)`.
    pub attributes: Vec<String>,
    /// Set where the file is not Rust that can be read.
    pub error: Option<String>,
}

/// One identifier or keyword.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ident {
    /// The word.
    pub name: String,
    /// Its line, from 1.
    pub line: usize,
}

/// One function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of `fn`, from 1.
    pub line: usize,
    /// Lines from `fn` to the closing brace.
    pub lines: usize,
}

impl Source {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Self {
        let mut source = Self {
            opening: text
                .lines()
                .take_while(|line| line.starts_with("//"))
                .map(str::to_owned)
                .collect(),
            lines: text.lines().count(),
            ..Self::default()
        };
        match text.parse::<TokenStream>() {
            Ok(tokens) => {
                let tokens: Vec<TokenTree> = tokens.into_iter().collect();
                source.attributes = inner_attributes(&tokens);
                if source
                    .attributes
                    .iter()
                    .any(|attribute| is_test_cfg(attribute))
                {
                    source.tests.push(1..=source.lines);
                }
                source.walk(&tokens);
            }
            Err(error) => source.error = Some(error.to_string()),
        }
        source
    }

    /// Tells whether a line lies in a `#[cfg(test)]` item.
    pub fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&line))
    }

    /// Counts the lines outside of `#[cfg(test)]` items.
    pub fn production_lines(&self) -> usize {
        (1..=self.lines).filter(|&line| !self.is_test(line)).count()
    }

    /// Lists the lines where a word is used as code.
    pub fn lines_saying(&self, name: &str) -> impl Iterator<Item = usize> {
        self.idents
            .iter()
            .filter(move |ident| ident.name == name)
            .map(|ident| ident.line)
    }

    fn walk(&mut self, tokens: &[TokenTree]) {
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(ident) => {
                    let (name, line) = (ident.to_string(), ident.span().start().line);
                    if name == "fn" {
                        self.functions.extend(function(&tokens[at..]));
                    }
                    self.idents.push(Ident { name, line });
                }
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    self.tests.extend(test_item(&tokens[at..]))
                }
                TokenTree::Group(group) => {
                    self.walk(&group.stream().into_iter().collect::<Vec<_>>())
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

/// Returns the content of the bracket group that follows `#`, without spaces.
fn attribute(tokens: &[TokenTree]) -> Option<String> {
    match tokens {
        [TokenTree::Punct(hash), TokenTree::Group(group), ..]
            if hash.as_char() == '#' && group.delimiter() == Delimiter::Bracket =>
        {
            Some(spaceless(group.stream()))
        }
        _ => None,
    }
}

fn spaceless(tokens: TokenStream) -> String {
    tokens
        .to_string()
        .chars()
        .filter(|character| !character.is_whitespace())
        .collect()
}

fn inner_attributes(tokens: &[TokenTree]) -> Vec<String> {
    let mut attributes = Vec::new();
    for three in tokens.windows(3) {
        if let [
            TokenTree::Punct(hash),
            TokenTree::Punct(bang),
            TokenTree::Group(group),
        ] = three
            && hash.as_char() == '#'
            && bang.as_char() == '!'
            && bang.spacing() == Spacing::Alone
            && group.delimiter() == Delimiter::Bracket
        {
            attributes.push(spaceless(group.stream()));
        }
    }
    attributes
}

/// Tells whether an attribute keeps its item out of every build but the test build.
fn is_test_cfg(attribute: &str) -> bool {
    attribute == "cfg(test)"
        || attribute.starts_with("cfg(all(test,")
        || attribute.ends_with(",test))") && attribute.starts_with("cfg(all(")
}

/// Returns the lines of the item whose attributes begin here, if one of them makes it a test item.
fn test_item(tokens: &[TokenTree]) -> Option<RangeInclusive<usize>> {
    let first = tokens.first()?.span().start().line;
    if !is_test_cfg(&attribute(tokens)?) {
        return None;
    }
    let mut rest = tokens;
    while attribute(rest).is_some() {
        rest = &rest[2..];
    }
    let ends_at_semicolon = is_statement_like(rest);
    for token in rest {
        let ends = match token {
            TokenTree::Punct(punct) => punct.as_char() == ';',
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !ends_at_semicolon,
            TokenTree::Ident(_) | TokenTree::Literal(_) => false,
        };
        if ends {
            return Some(first..=token.span().end().line);
        }
    }
    let last = rest.last().map_or(first, |token| token.span().end().line);
    Some(first..=last)
}

/// Tells whether an item ends at `;` even though braces may come before it (`use a::{b, c};`).
fn is_statement_like(item: &[TokenTree]) -> bool {
    let mut words = item.iter().filter_map(|token| match token {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    });
    while let Some(word) = words.next() {
        match word.as_str() {
            "use" | "static" | "type" | "let" => return true,
            "const" => {
                return !matches!(
                    words.next().as_deref(),
                    Some("fn" | "unsafe" | "async" | "extern")
                );
            }
            "mod" | "fn" | "impl" | "struct" | "enum" | "union" | "trait" | "macro_rules"
            | "extern" => return false,
            _ => {}
        }
    }
    false
}

/// Returns the function that begins at `fn`; a function pointer type or a trait method without body is none.
fn function(tokens: &[TokenTree]) -> Option<Function> {
    let TokenTree::Ident(name) = tokens.get(1)? else {
        return None;
    };
    let line = tokens[0].span().start().line;
    for token in &tokens[2..] {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ';' => return None,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let lines = group.span_close().end().line + 1 - line;
                return Some(Function {
                    name: name.to_string(),
                    line,
                    lines,
                });
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_in_a_comment_a_string_or_a_doc_is_not_code() {
        let source = Source::parse(
            "//! unsafe\n// unsafe\n/// unsafe\nfn a() { let _ = \"unsafe\"; let _ = r#\"unsafe\"#; }\n",
        );
        assert_eq!(source.error, None);
        assert_eq!(source.lines_saying("unsafe").count(), 0);
    }

    #[test]
    fn a_word_in_code_is_found_at_its_line() {
        let source = Source::parse("fn a() {\n    unsafe { b() }\n}\n");
        assert_eq!(source.lines_saying("unsafe").collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn test_items_do_not_count_as_production() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        let source = Source::parse(text);
        assert_eq!(source.tests, vec![2..=5]);
        assert_eq!(source.production_lines(), 2);
    }

    #[test]
    fn a_test_use_with_braces_ends_at_its_semicolon() {
        let source = Source::parse("#[cfg(test)]\nuse a::{b,\n c};\nfn d() {}\n");
        assert_eq!(source.tests, vec![1..=3]);
    }

    #[test]
    fn a_test_item_with_more_attributes_is_still_one() {
        let source = Source::parse(
            "#[cfg(all(test, not(loom)))]\n#[path = \"x.rs\"]\nmod tests;\nfn d() {}\n",
        );
        assert_eq!(source.tests, vec![1..=3]);
    }

    #[test]
    fn an_item_for_tests_or_a_feature_is_production() {
        let source = Source::parse(
            "#[cfg(any(test, feature = \"test-util\"))]\nmod opaque {}\n#[cfg(not(test))]\nfn a() {}\n",
        );
        assert_eq!(source.tests, Vec::<RangeInclusive<usize>>::new());
    }

    #[test]
    fn a_file_for_tests_has_no_production_line() {
        let source = Source::parse("#![cfg(test)]\nfn a() {}\n");
        assert_eq!(source.production_lines(), 0);
    }

    #[test]
    fn inner_attributes_are_listed_without_spaces() {
        let source = Source::parse(
            "//! A crate.\n\n#![forbid(unsafe_code)]\n#![cfg_attr(docsrs, feature(doc_cfg))]\n",
        );
        assert!(
            source
                .attributes
                .contains(&"forbid(unsafe_code)".to_owned())
        );
    }

    #[test]
    fn functions_know_their_length() {
        let source = Source::parse(
            "impl A {\n    fn b(\n        c: fn(u8) -> u8,\n    ) {\n    }\n}\ntrait T { fn d(); }\n",
        );
        assert_eq!(
            source.functions,
            [Function {
                name: "b".to_owned(),
                line: 2,
                lines: 4
            }]
        );
    }

    #[test]
    fn a_file_that_does_not_lex_says_so() {
        assert!(Source::parse("fn a( {").error.is_some());
    }
}
