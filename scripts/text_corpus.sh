# Functions for quickstart.sh: convert any text of at least a kilobyte to documents, a tokenizer of suitable size, and
# a split without empty parts. Functions print errors on stderr and return 2.

# check_text PATH...: the files must exist, be readable UTF-8 and have a kilobyte in total. Uses only programs of a
# minimal Debian.
check_text() {
  local path bytes=0 size
  for path in "$@"; do
    [ -r "$path" ] || { echo "quickstart.sh: --text $path: there is no such file or folder, or it cannot be read" >&2; return 2; }
  done
  while IFS= read -r -d '' path; do
    [ -r "$path" ] || { echo "quickstart.sh: --text: $path cannot be read" >&2; return 2; }
    size=$(stat -Lc %s "$path")
    bytes=$((bytes + size))
    [ "$size" -gt 100000000 ] || iconv -f UTF-8 -t UTF-8 "$path" > /dev/null 2>&1 ||
      { echo "quickstart.sh: --text: $path is not UTF-8 text; convert it first (iconv -f LATIN1 -t UTF-8)" >&2; return 2; }
  done < <(find -L "$@" -type f -print0)
  [ "$bytes" -ge 1000 ] || { echo "quickstart.sh: --text: $bytes bytes in all; a kilobyte is the least to learn from" >&2; return 2; }
}

# text_bytes PATH...
text_bytes() { find -L "$@" -type f -printf '%s\n' | awk '{n += $1} END {print n + 0}'; }

# few_documents PATH...: whether there are too few files to use each as a document. Each line of a JSON lines file is
# a document.
few_documents() {
  [ -z "$(find -L "$@" -type f \( -name '*.jsonl' -o -name '*.ndjson' -o -name '*.json' \) -print -quit)" ] &&
    [ "$(find -L "$@" -type f -size +0 -printf . | head -c 100 | wc -c)" -lt 100 ]
}

# cut_documents FOLDER PATH...: writes chunks of some kilobytes, or a fortieth of a short text, one file each. It
# splits at a blank line if there is one in range, else at a line end. Lines that are too long are split at a space or
# between characters.
cut_documents() {
  local folder=$1 total target
  shift
  total=$(text_bytes "$@")
  target=$((total / 40 < 64 ? 64 : total / 40 > 8192 ? 8192 : total / 40))
  [ $((total / target)) -le 5000 ] || target=$((total / 5000))
  mkdir -p "$folder"
  find -L "$@" -type f -size +0 -print0 | sort -z | LC_ALL=C xargs -0 awk -v folder="$folder" -v target="$target" '
    function flush_piece() {
      if (piece ~ /[^ \t\n\r]/) { name = sprintf("%s/%07d.txt", folder, ++pieces); printf "%s", piece > name; close(name) }
      piece = ""
    }
    FNR == 1 { flush_piece() }
    {
      line = $0
      while (length(line) > 2 * target) {
        at = target
        while (at > target / 2 && substr(line, at, 1) != " ") --at
        if (at <= target / 2) for (at = target; substr(line, at + 1, 1) ~ /[\200-\277]/; ) --at
        piece = piece substr(line, 1, at)
        line = substr(line, at + 1)
        flush_piece()
      }
      piece = piece line "\n"
      if (length(piece) >= 2 * target || (length(piece) >= target && line ~ /^[ \t\r]*$/)) flush_piece()
    }
    END { flush_piece() }'
}

# train_tokenizer METROPLEX OUTPUT PATH...: trains about 4096 pieces. Short texts have fewer, texts with more distinct
# characters have more.
train_tokenizer() {
  local metroplex=$1 output=$2 total wanted size said=""
  shift 2
  total=$(text_bytes "$@")
  wanted=$((300 + total / 16 > 4096 ? 4096 : 300 + total / 16))
  for size in "$wanted" $((wanted / 2)) $((wanted / 4)) $((wanted / 8)) 320 300 280 270 264 261 $((wanted * 2)) $((wanted * 4)) \
    $((wanted * 8)); do
    [ "$size" -gt 260 ] || continue
    if said=$("$metroplex" tokenizer train --input "$@" --vocab-size "$size" --model-type bpe --output "$output" 2>&1); then
      echo "   $said"
      return
    fi
  done
  echo "$said" >&2
  return 2
}

# split_of METROPLEX PREFIX: prints data.split for the number of documents.
split_of() {
  local documents
  documents=$("$1" inspect "$2" | sed -n 's/.* \([0-9]*\) documents$/\1/p')
  [ "${documents:-0}" -ge 200 ] && echo 980,20,0 || echo 80,20,0
}

# first_words PATH...: prints the beginning of one of the documents.
first_words() {
  local file
  file=$(find -L "$@" -type f -size +0 -not -name '.*' -print -quit)
  LC_ALL=C.UTF-8 bash -c 'IFS= read -r line < "$1"; printf %s "${line:0:20}"' _ "$file"
}
