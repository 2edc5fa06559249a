#!/bin/bash
# Refuses lines over 110 columns in sources, scripts and documents: file:line for each, exit code 1.
# Exempt are table rows, program output fenced as ```text in documents, a URL alone on its line (after a
# comment mark), generated files, and tests/golden/tokens.py, whose text is the training set of a tokenizer.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files -- '*.rs' '*.md' '*.toml' '*.sh' '*.sbatch' '*.py' '*.mjs' '*.c' '*.h' \
    '*.cpp' '*.hpp' '*.cu' '*.cuh' '*Makefile' .ci/run ':!tests/golden/tokens.py')
# Bytes that continue a UTF-8 character are no columns; with LC_ALL=C every awk counts bytes.
LC_ALL=C awk -v limit=110 '
    FNR == 1 { fence = "" }
    FILENAME ~ /\.md$/ && /^ *```/ { sub(/^ */, ""); fence = fence == "" ? $0 : "" }
    { line = $0; gsub(/[\200-\277]/, "", line) }
    length(line) <= limit || fence == "```text" { next }
    /^ *(\/\/[\/!]? *)?\|.*\|$/ || /^ *(#|\/\/[\/!]?)? *[^ ]*:\/\/[^ ]*$/ { next }
    { printf "%s:%d: %d columns\n", FILENAME, FNR, length(line); bad = 1 }
    END { exit bad }
' "${files[@]}"
