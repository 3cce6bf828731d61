// Examples for a first message. The embedded model can do them.

const CODE = `def load(path, default=None):
    """Return the text of a file, or the default."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return default


def save(path, text):
    """Write the text to a file."""
    with open(path, "w") as file:
        file.write(text)
    return len(text)
`;
const FENCED = `\`\`\`python\n${CODE}\`\`\``;

export const EXAMPLES = [
  { title: "Repeat code", words: "All of it can be guessed.", text: `Repeat this code:\n\n${FENCED}` },
  { title: "Rename a parameter", words: "Most of it can.", text: `Rename \`path\` to \`name\` in this code:\n\n${FENCED}` },
  { title: "Show one function", words: "Copied out of a file.", text: `Show the function \`save\` from this file:\n\n${FENCED}` },
];
