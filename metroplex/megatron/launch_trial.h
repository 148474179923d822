// What bash reads before a launch script: every name of a command that would start something becomes a function that
// writes down its words, so that the script goes on as if it had run. Builtins run as they are, and functions answer
// for some small programs (launch_tools.h, launch_filters.h). Where a script takes what any other program prints, it
// gets a mark, by which the reader knows what cannot be known. None of this has to be tight: the filter
// (make_trial_filter) is.
#pragma once

namespace metroplex::megatron {

// To be run behind kLaunchTools and kLaunchFilters; "extdebug" and the trap on metroplex_step come after it. What it
// writes to descriptor 199 (kRecordFd) is read by read_record of launch_script.cpp: of each command the number of its
// words, the folder and the words. A record of a mark (kMark of trial.h) alone says that it was printed, one of a
// mark and a "!" that what the script does next depends on what is not known.
inline constexpr const char* kLaunchTrial = R"BASH(
builtin exec 197>&1
# Several processes may write at once, so it takes small pieces, each written as one: the process, "." where a word ends
# there or else "+", the piece. A new line would be two writes and goes as \1.
metroplex_record() {
  local mpx_word
  for mpx_word in "$#" "$PWD" "$@"; do
    mpx_word=${mpx_word//$'\n'/$'\1'}
    while [[ ${#mpx_word} -gt 900 ]]; do
      builtin printf '%s\0' "$BASHPID" + "${mpx_word:0:900}"
      mpx_word=${mpx_word:900}
    done
    builtin printf '%s\0' "$BASHPID" . "$mpx_word"
  done >&199
}
# In the place of what TOOL would print, where it is read by something.
metroplex_unknown() {
  [[ ${2-} != ! && (/dev/fd/1 -ef /dev/fd/197 || /dev/fd/1 -ef /dev/null) ]] && return 0
  local mpx_mark=@not@run@${1//[!A-Za-z0-9_+-]/_}@${metroplex_line-}@${metroplex_file//[!A-Za-z0-9_.+-]/_}@
  metroplex_record "$mpx_mark" "${@:2}"
  builtin printf '%s\n' "$mpx_mark"
}
metroplex_refuse() { metroplex_unknown "$1" !; }

metroplex_tools="dirname basename realpath readlink date seq nproc hostname uname whoami id expr ls getopt \
  cat tee head tail wc tr cut grep"
for metroplex_tool in $metroplex_tools; do
  eval "$metroplex_tool() { local -; set -f +eTu; metroplex_$metroplex_tool \"\$@\"; }"
done

# The text that a shell is given with -c, its name, and its arguments.
launched_text() {
  local metroplex_text=$1
  shift $(($# > 1 ? 2 : 1))
  eval "$metroplex_text"
}
# A shell's words from its name on, wherever they stand. Fails when it names no text and no file.
metroplex_shell() {
  local metroplex_text=0
  shift
  while [[ ${1-} == [-+]?* ]]; do
    case $1 in
      --) shift; break ;;
      --rcfile | --init-file) shift ;;
      --*) ;;
      -*c*) metroplex_text=1; [[ $1 == *[oO]* ]] && shift ;;
      *[oO]) shift ;;
    esac
    shift
  done
  [[ $# == 0 ]] && return 1
  if [[ $metroplex_text == 1 ]]; then
    (launched_text "$@")
  elif [[ -f $1 ]]; then
    (. "$@")
  else
    return 1
  fi
  return 0
}
metroplex_note() {
  local metroplex_at metroplex_text
  for ((metroplex_at = 1; metroplex_at <= $#; metroplex_at++)); do
    case ${!metroplex_at##*/} in
      sh | bash | dash | zsh | ksh) metroplex_shell "${@:metroplex_at}" && return 0 ;;
    esac
    [[ ${1##*/} != sbatch || $metroplex_at == 1 ]] && continue
    metroplex_text=${!metroplex_at}
    [[ $metroplex_text == --wrap ]] && { (launched_text "${@:metroplex_at+1:1}"); return 0; }
    [[ $metroplex_text == --wrap=* ]] && { (launched_text "${metroplex_text#*=}"); return 0; }
    [[ $metroplex_text != -* && -f $metroplex_text ]] && { (. "${@:metroplex_at}"); return 0; }
  done
  case ${1##*/} in
    bash | sh | sbatch)
      [[ $# == 1 ]] && IFS= read -r -d '' metroplex_text
      [[ $# == 1 ]] && { launched_text "$metroplex_text"; return 0; } ;;
  esac
  metroplex_record "$@"
  case ${1##*/} in
    # These print nothing: some never, some where there is no such device.
    mkdir | rmdir | touch | rm | cp | mv | ln | chmod | chown | sleep | sync | nvidia-smi | rocm-smi) ;;
    *) metroplex_unknown "${1##*/}" ;;
  esac
}
command_not_found_handle() { metroplex_note "$@"; }
exec() { "$@"; }
command() {
  [[ ${1-} == -p ]] && shift
  [[ ${1-} == -- ]] && shift
  [[ $# == 0 ]] && return 0
  if [[ $1 == -* ]]; then
    builtin command "$@"
  elif [[ $(builtin type -ft "$1") == builtin ]]; then
    builtin "$@"
  else
    metroplex_tool "$@"
  fi
}
# A program by its path: those of the system's folders answer.
metroplex_path() {
  case $1 in
    /bin/* | /usr/bin/*) metroplex_tool "$@" ;;
    *) metroplex_note "$@" ;;
  esac
}
# A program by its name, whatever functions the script has.
metroplex_tool() {
  case " $metroplex_tools " in
    *" ${1##*/} "*) "metroplex_${1##*/}" "${@:2}" ;;
    *) metroplex_note "$@" ;;
  esac
}
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

# Before every command, with the script's own $1, $2, ... A name with a slash becomes a function of that name; errors
# do not end the trial.
metroplex_step() {
  set +eu
  trap - ERR
  [[ ${BASH_SOURCE[1]-environment} != environment ]] &&
    metroplex_line=${BASH_LINENO[0]} metroplex_file=${BASH_SOURCE[1]##*/}
  [[ ${1-} == @not@run@getopt@* ]] && exit 1  # it would shift for ever
  PATH=/nonexistent
  local metroplex_text=$BASH_COMMAND metroplex_word metroplex_words
  while [[ $metroplex_text =~ ^([^[:space:]]+)[[:space:]]*(.*)$ ]]; do
    metroplex_word=${BASH_REMATCH[1]} metroplex_text=${BASH_REMATCH[2]}
    [[ $metroplex_word =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] && continue
    [[ $metroplex_word == *[\`\(\)\;\&\|\<\>]* || $metroplex_word != *[/$]* ]] && break
    eval "metroplex_words=($metroplex_word)" 2> /dev/null
    [[ ${#metroplex_words[@]} == 0 ]] && continue
    metroplex_word=${metroplex_words[0]}
    if [[ $metroplex_word =~ ^[A-Za-z0-9_./+-]*/[A-Za-z0-9_./+-]*$ ]] &&
      ! declare -F "$metroplex_word" > /dev/null; then
      eval "function $metroplex_word { metroplex_path '$metroplex_word' \"\$@\"; }"
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
  return 0
}
shopt -s extglob
)BASH";

}  // namespace metroplex::megatron
