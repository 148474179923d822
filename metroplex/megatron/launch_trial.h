// What bash reads before a launch script: every name of a command that would start something becomes a function that
// writes down its words. Builtins and tools that only read run as they are.
#pragma once

namespace metroplex::megatron {

// To be sourced with METROPLEX_RECORD set to an empty file; "extdebug" and the trap on metroplex_step come after it.
// A record is the number of words, the folder and the words, each ended by a zero byte.
inline constexpr const char* kLaunchTrial = R"BASH(
metroplex_tools=" basename dirname realpath readlink cat head tail cut tr seq date hostname nproc sed awk grep sort uniq \
wc expr uname id whoami ls getopt "
for metroplex_tool in $metroplex_tools; do
  metroplex_path=$(type -P "$metroplex_tool") && eval "$metroplex_tool() { $metroplex_path \"\$@\"; }"
done
metroplex_sed=$(type -P sed)
sed() { case " $* " in *" -i"* | *" --in-place"*) ;; *) "$metroplex_sed" "$@" ;; esac; }

metroplex_note() {
  local metroplex_before= metroplex_word
  for metroplex_word in "$@"; do
    case $metroplex_before in
      -c | -lc | -ec | -xc | -exc) eval "$metroplex_word"; return ;;
    esac
    metroplex_before=$metroplex_word
  done
  case ${1##*/} in
    bash | sh | sbatch)
      [[ -f ${2-} ]] && { (. "$2" "${@:3}"); return; }
      [[ $# == 1 ]] && { eval "$("$metroplex_cat")"; return; } ;;
  esac
  builtin printf '%s\0' "$#" "$PWD" "$@" >> "$METROPLEX_RECORD"
}
metroplex_cat=$(type -P cat)
command_not_found_handle() { metroplex_note "$@"; }
exec() { "$@"; }
kill() { :; }
[() { metroplex_test "[" "$@"; }
test() { metroplex_test test "$@"; }
# The programs of another source tree need not be on this machine.
metroplex_test() {
  case "${*:2:3}" in
    "-"[efrs]" "*.py*) return 0 ;;
    "! -"[efrs]" "*.py) return 1 ;;
  esac
  builtin "$@"
}

# Before every command, with the script's own $1, $2, ... A name with a slash becomes a function of that name; a
# redirection into a file is left out; errors do not end the trial.
metroplex_step() {
  set +eu
  trap - ERR
  [[ ${FUNCNAME[1]-} == metroplex_* || $metroplex_tools == *" ${FUNCNAME[1]-none} "* ]] && return 0
  PATH=/nonexistent
  local metroplex_text=$BASH_COMMAND metroplex_word metroplex_words
  while [[ $metroplex_text =~ ^([^[:space:]]+)[[:space:]]*(.*)$ ]]; do
    metroplex_word=${BASH_REMATCH[1]} metroplex_text=${BASH_REMATCH[2]}
    [[ $metroplex_word =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] && continue
    [[ $metroplex_word == *[\`\(\)\;\&\|\<\>]* || $metroplex_word != *[/$]* ]] && break
    eval "metroplex_words=($metroplex_word)" 2> /dev/null
    [[ ${#metroplex_words[@]} == 0 ]] && continue
    metroplex_word=${metroplex_words[0]}
    if [[ $metroplex_word =~ ^[A-Za-z0-9_./+-]*/[A-Za-z0-9_./+-]*$ ]] && ! declare -F "$metroplex_word" > /dev/null; then
      eval "function $metroplex_word { metroplex_note '$metroplex_word' \"\$@\"; }"
    fi
    break
  done
  if [[ $BASH_COMMAND == '[[ ! -'[efrs]*.py* || $BASH_COMMAND == '[[ ! -'[efrs]*\$* ]]; then
    eval "metroplex_words=(${BASH_COMMAND:6})" 2> /dev/null
    [[ ${metroplex_words[1]-} == *.py ]] && metroplex_forgive=1
  fi
  if [[ ${metroplex_forgive-} == 1 && ($BASH_COMMAND == exit* || $BASH_COMMAND == return*) ]]; then
    metroplex_forgive=0
    return 1
  fi
  [[ $BASH_COMMAND == *'>'* && $BASH_COMMAND != [\[\(]* ]] || return 0
  local metroplex_more='(.*[^[:space:]])' metroplex_into='([0-9]*|&)>[>|&]?[[:space:]]*("[^"]*"|[^[:space:]"<>()&]+)'
  local metroplex_rest='([[:space:]]+[0-9]*>&[0-9])*'  # copies of descriptors, and a here-document
  [[ $BASH_COMMAND == *'<<'* ]] && metroplex_rest+=$'([[:space:]]+<<.*|\n.*)?'
  metroplex_text=$BASH_COMMAND
  while [[ $metroplex_text =~ ^$metroplex_more[[:space:]]+$metroplex_into($metroplex_rest)$ ]]; do
    metroplex_text=${BASH_REMATCH[1]}${BASH_REMATCH[4]}
  done
  [[ $metroplex_text == "$BASH_COMMAND" ]] && return 0
  eval "$metroplex_text"
  return 1
}
set -o noclobber
shopt -s extglob
)BASH";

}  // namespace metroplex::megatron
