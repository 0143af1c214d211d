//! Aligned columns. Pure, and without colour: what is printed here is often read by other programs.

/// Rows under a head line. The last column is not padded.
#[derive(Clone, Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    widths: Vec<usize>,
}

/// Between two columns, as `kubectl` has it.
const GAP: usize = 3;

impl Table {
    pub(super) fn new(head: &[&str]) -> Self {
        let mut table = Self {
            rows: Vec::new(),
            widths: vec![0; head.len()],
        };
        table.push(head.iter().map(ToString::to_string).collect());
        table
    }

    pub(super) fn push(&mut self, row: Vec<String>) {
        let row: Vec<String> = row.iter().map(|cell| one_line(cell)).collect();
        for (width, cell) in self.widths.iter_mut().zip(&row) {
            *width = (*width).max(cell.chars().count());
        }
        self.rows.push(row);
    }

    /// The rows that were pushed since the last call; columns only grow from one to the next.
    pub(super) fn take(&mut self) -> String {
        let mut text = String::new();
        for row in std::mem::take(&mut self.rows) {
            let mut line = String::new();
            for (width, cell) in self.widths.iter().zip(&row) {
                line.push_str(cell);
                let padding = width + GAP - cell.chars().count();
                line.extend(std::iter::repeat_n(' ', padding));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Control characters would break the table, or the terminal.
fn one_line(cell: &str) -> String {
    cell.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_later_rows_fit_in() {
        let mut table = Table::new(&["NAME", "STATUS"]);
        table.push(vec!["web".into(), "Running".into()]);
        table.push(vec!["süß-pod".into(), "two\nlines\x1b[31m".into()]);
        assert_eq!(
            table.take(),
            "NAME      STATUS\n\
             web       Running\n\
             süß-pod   two lines [31m\n"
        );
        table.push(vec!["a".into(), String::new()]);
        table.push(vec!["longer-name".into(), "x".into()]);
        assert_eq!(table.take(), "a\nlonger-name   x\n");
    }
}
