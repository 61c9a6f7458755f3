//! What apt says when it fails.

/// Returns the error lines in the output of apt, or else its last lines.
pub fn last_words(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let errors: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("E: "))
        .collect();
    let lines = if errors.is_empty() {
        text.lines().rev().take(1).collect()
    } else {
        errors
    };
    lines.join("; ").replace("E: ", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_lines_of_apt_are_found() {
        let said = b"W: slow\nE: no such package\nE: nor that\n";
        assert_eq!(last_words(said), "no such package; nor that");
        assert_eq!(last_words(b"something\nelse"), "else");
        assert_eq!(last_words(b""), "");
    }
}
