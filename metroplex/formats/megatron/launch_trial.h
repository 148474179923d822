// Bash code that runs before a launch script. Every name of an external command becomes a function that records
// its words, and the script continues. Builtins run unchanged; functions emulate some small programs
// (launch_tools.h, launch_filters.h). The output of any other program is a mark, so that the reader detects
// unknown values. Security depends only on the filter (make_trial_filter), not on this code.
#pragma once

namespace metroplex::megatron {

// Runs after kLaunchTools, kLaunchFilters and kLaunchFiles; "extdebug" and the trap on metroplex_step come after it.
// read_record of launch_script.cpp reads its output on descriptor 199 (kRecordFd): for each command the number of its
// words, the folder and the words. Records with a mark (kMark of trial.h):
//   mark alone: the mark was printed
//   mark and "!": the next commands depend on the program, and the script is refused
//   mark and "#": the trial assumed a number or a status ($metroplex_trial, 0 to 2, selects it)
//   mark and "?" or "~": see launch_branches.h
inline constexpr const char* kLaunchTrial = R"BASH(
shopt -s extglob
exec 197>&1
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
# Prints the mark of TOOL, unless its output goes to the screen or to /dev/null. The number of lines is unknown too, so
# the trials (0, 1, 2) assume 1, 2 and 0 lines.
metroplex_unknown() {  # TOOL [!]
  [[ ${2-} != ! ]] && metroplex_output_is_unused && return 0
  local mpx_counts=(1 2 0)
  [[ ${2-} == ! ]] && mpx_counts=(1 1 1)
  metroplex_marks "${mpx_counts[metroplex_trial]}" "$@"
}
metroplex_output_is_unused() { [[ /dev/fd/1 -ef /dev/fd/197 || /dev/fd/1 -ef /dev/null ]]; }
# Parts of the text of a mark (${X:0:4}, its digits) differ between trials too.
metroplex_vary_mark() { [[ $metroplex_trial == 1 || -n $metroplex_only ]] && mpx_mark=47x${mpx_mark}x83; }
metroplex_marks() {  # LINES TOOL [!]
  local mpx_at mpx_mark=@not@run@${2//[!A-Za-z0-9_+-]/_}@${metroplex_line-}@${metroplex_file//[!A-Za-z0-9_.+-]/_}@
  metroplex_record "$mpx_mark" "${@:3}"
  if [[ -n ${metroplex_assumed+x} ]]; then
    builtin printf '%s\n' "$metroplex_assumed"
    return
  fi
  metroplex_vary_mark
  for ((mpx_at = 0; mpx_at < $1; mpx_at++)); do builtin printf '%s\n' "$mpx_mark"; done
}
# A query of devices: one line per device, of which the trials assume 8, 48 and 1.
metroplex_devices() {
  local mpx_counts=(8 48 1) mpx_at mpx_count
  mpx_count=${mpx_counts[metroplex_trial]}
  metroplex_output_is_unused && return 0
  case " $* " in
    *" -i "* | *" --id"* | *" topo "*) metroplex_unknown "${1##*/}" ;;
    *count*noheader* | *"print(torch.cuda.device_count())"*)
      metroplex_assumed_status "${1##*/}" 0 0 0
      if [[ $1 != *python* ]]; then
        for ((mpx_at = 1; mpx_at < mpx_count; mpx_at++)); do builtin printf '%s\n' "$mpx_count"; done
      fi
      builtin printf '%s\n' "$mpx_count" ;;
    *) metroplex_marks "$mpx_count" "${1##*/}" ;;
  esac
}
metroplex_refuse() { metroplex_unknown "$1" !; }

metroplex_tools="dirname basename realpath readlink date seq nproc hostname uname arch whoami id expr ls getopt which \
  cat tee head tail wc tr cut grep touch rm unlink cp mv ln"
for metroplex_tool in $metroplex_tools; do
  eval "$metroplex_tool() { local -; set -f +eTu; metroplex_$metroplex_tool \"\$@\"; }"
done

# The text that a shell is given with -c, its name, and its arguments.
launched_text() {
  local metroplex_text=$1
  metroplex_enter
  shift $(($# > 1 ? 2 : 1))
  eval "$metroplex_text"
}
# Runs a script file with its arguments as a program of its own.
launched_file() {
  local metroplex_script=$1
  metroplex_enter
  BASH_ARGV0=$1
  shift
  . "$metroplex_script" "$@"
}
# A shell's words from its name on, wherever they stand. Fails when it has no text and no file.
metroplex_shell() {
  local metroplex_text=0 metroplex_name=$1
  shift
  while [[ ${1-} == [-+]?* ]]; do
    case $1 in
      --) shift; break ;;
      --rcfile | --init-file) shift ;;
      --*) ;;
      -*c*) metroplex_text=1; [[ $1 == *[oO]* ]] && shift ;;
      *[oO]) shift ;;
      -*s*) metroplex_text=2 ;;
    esac
    shift
  done
  [[ ${1-} == - ]] && shift
  if [[ $# == 0 || $metroplex_text == 2 ]]; then
    IFS= read -r -d '' metroplex_text
    [[ -z $metroplex_text ]] && return 1
    (launched_text "$metroplex_text" "$metroplex_name" "$@")
  elif [[ $metroplex_text == 1 ]]; then
    (launched_text "$@")
  elif [[ -f $1 ]]; then
    (launched_file "$@")
  else
    return 1
  fi
  return 0
}
# Succeeds for the path of a shell script.
metroplex_is_script() {
  local mpx_line=
  [[ $1 == */* && $1 != @(/usr|/bin|/sbin)/* && $1 != *.py && -f $1 && -r $1 ]] || return
  [[ $1 == *.sh || $1 == *.bash ]] && return
  IFS= read -r -n 80 mpx_line < "$1"
  [[ $mpx_line == '#!'*[/[:space:]]@(sh|bash|dash|zsh|ksh)* ]]
}
# Sets metroplex_outer for a Slurm job: the words of sbatch, with the options in the job's script before its own.
metroplex_slurm_job() {  # TEXT, the words of sbatch
  local mpx_line mpx_options=() mpx_words
  while IFS= read -r mpx_line; do
    [[ $mpx_line == '#SBATCH'[[:space:]]* ]] || continue
    IFS=$' \t' read -r -a mpx_words <<< "${mpx_line#\#SBATCH}"
    for mpx_line in "${mpx_words[@]}"; do
      [[ $mpx_line == '#'* ]] && break
      mpx_options+=("$mpx_line")
    done
  done <<< "$1"
  metroplex_outer=("${metroplex_before[@]}" "$2" "${mpx_options[@]}" "${@:3}")
}
metroplex_slurm_file() {  # FILE, the words of sbatch before it
  local mpx_text
  IFS= read -r -d '' -n 1048576 mpx_text < "$1"
  metroplex_slurm_job "$mpx_text" "${@:2}"
  [[ $2 != sbatch ]] || metroplex_job
}
# Records the words of a command. The variables and files that may hold its number of ranks come first.
metroplex_launch() {
  local mpx_name mpx_word mpx_file mpx_text mpx_before=()
  # Simple patterns: bash compares alternatives with every place of a long text.
  if [[ $* != *.py* && $* != *-m\ *train* && $* != *--module*train* ]]; then
    metroplex_record "$@"
    return
  fi
  for mpx_name in PET_NNODES PET_NPROC_PER_NODE WORLD_SIZE CUDA_VISIBLE_DEVICES; do
    [[ ${!mpx_name@a} == *x* ]] && mpx_before+=("$mpx_name=${!mpx_name}")
  done
  mpx_name=
  for mpx_word; do
    [[ $mpx_word == *.py ]] && break
    mpx_file=
    [[ $mpx_name == -*(-)@(hostfile|machinefile|config_file|config-file|f|H) ]] && mpx_file=$mpx_word
    [[ $mpx_word == --@(hostfile|machinefile|config_file|config-file)=* ]] && mpx_file=${mpx_word#*=}
    mpx_name=$mpx_word
    [[ -n $mpx_file && -f $mpx_file && -r $mpx_file ]] || continue
    IFS= read -r -d '' -n 65536 mpx_text < "$mpx_file"
    mpx_before+=("metroplex-file:$mpx_file=$mpx_text"$'\n')
  done
  metroplex_record "${mpx_before[@]}" "$@"
}
# Adds the words that xargs reads to its command; a mark for other forms of xargs.
metroplex_xargs() {
  local mpx_text mpx_words
  IFS= read -r -d '' mpx_text
  if [[ ${2-} == -* || $mpx_text == *[\'\"\\]* ]]; then
    mpx_words=("@not@run@xargs@${metroplex_line-}@${metroplex_file//[!A-Za-z0-9_.+-]/_}@")
  else
    IFS=$' \t\n' read -r -d '' -a mpx_words <<< "$mpx_text"
  fi
  metroplex_note "${@:2}" "${mpx_words[@]}"
}
# Unknown output that the script runs as text: it may set variables, unless its program sets up shells.
metroplex_run_output() {
  case ${1#*@not@run@} in
    conda@* | mamba@* | micromamba@* | *modulecmd@* | pyenv@* | spack@* | brew@* | direnv@* | dircolors@* | \
      lesspipe@* | ssh-agent@* | starship@* | zoxide@* | fzf@* | kubectl@*) ;;
    *) metroplex_record "@not@run@${1#*@not@run@}" '!' ;;
  esac
}
metroplex_note() {
  local metroplex_at metroplex_text metroplex_before=("${metroplex_outer[@]}")
  local metroplex_outer  # the launchers of an inner shell: its commands are recorded with them
  if [[ $1 == *@not@run@* && $* != *.py* ]]; then
    [[ ${metroplex_child-} != 1 || ${metroplex_script-} == '' ]] ||
      metroplex_record "@not@run@${1#*@not@run@}" - "$metroplex_script"
    [[ ${metroplex_child-} == 1 ]] || metroplex_run_output "$1"
    return 0
  fi
  local metroplex_child=1  # the commands of an inner shell cannot set variables of the script
  case ${1##*/} in
    env | nohup | nice | timeout | sudo | time | stdbuf)
      for ((metroplex_at = 2; metroplex_at <= $#; metroplex_at++)); do
        [[ ${!metroplex_at##*/} == @(sbatch|qsub|bsub|msub|ssh|pdsh|clush|pssh|parallel-ssh|mpssh|dsh) ]] || continue
        metroplex_outer=("${metroplex_before[@]}" "${@:1:metroplex_at-1}")
        (metroplex_enter; metroplex_note "${@:metroplex_at}")
        return 0
      done ;;
  esac
  for ((metroplex_at = 1; metroplex_at <= $#; metroplex_at++)); do
    metroplex_outer=("${metroplex_before[@]}" "${@:1:metroplex_at-1}")
    [[ "${metroplex_outer[*]}" == *.py* ]] && metroplex_outer=()
    case ${!metroplex_at##*/} in
      sh | bash | dash | zsh | ksh) metroplex_shell "${@:metroplex_at}" && return 0 ;;
    esac
    if [[ ${1##*/} != @(sbatch|qsub|bsub|msub) && ($metroplex_at == 1 || $* != *.py*) ]] &&
      metroplex_is_script "${!metroplex_at}"; then
      (launched_file "${@:metroplex_at}")
      return 0
    fi
    [[ ${1##*/} != @(sbatch|qsub|bsub|msub) || $metroplex_at == 1 ]] && continue
    metroplex_text=${!metroplex_at}
    [[ $metroplex_text == --wrap ]] && { (launched_text "${@:metroplex_at+1:1}"); return 0; }
    [[ $metroplex_text == --wrap=* ]] && { (launched_text "${metroplex_text#*=}"); return 0; }
    if [[ $metroplex_text != -* && -f $metroplex_text ]]; then
      (metroplex_slurm_file "$metroplex_text" "${@:1:metroplex_at-1}"; launched_file "${@:metroplex_at}")
      return 0
    fi
  done
  metroplex_text=
  case ${1##*/}:$* in
    @(ssh|pdsh|clush|pssh|parallel-ssh|mpssh|dsh):*)
      [[ ${!#} == *@(.py|-m *train*)*[[:space:]]* || ${!#} == *[[:space:]]@(*.sh*|bash *|sbatch *) ]] &&
        { (launched_text "${!#}"); return 0; }
      [[ ${1##*/} == ssh && $* != *' -n '* ]] && IFS= read -r -d '' metroplex_text
      [[ $metroplex_text == *.py*[[:space:]]* ]] && { (launched_text "$metroplex_text"); return 0; } ;;
    @(sbatch|qsub|bsub|msub):*)
      IFS= read -r -d '' metroplex_text
      if [[ -n $metroplex_text ]]; then
        (metroplex_slurm_job "$metroplex_text" "$@"
          [[ $1 != sbatch ]] || metroplex_job
          launched_text "$metroplex_text")
        return 0
      fi ;;
    xargs:*@(.py|-m *train*)*) metroplex_xargs "$@"; return 0 ;;
  esac
  metroplex_launch "${metroplex_before[@]}" "$@"
  metroplex_spoil "$@"
  case ${1##*/}:$* in
    # These print nothing.
    mkdir:* | rmdir:* | chmod:* | chown:* | sleep:* | sync:*) ;;
    mktemp:*) metroplex_marks 1 mktemp ;;
    nvidia-smi:* | python*"print(torch.cuda.device_count())"*) metroplex_devices "$@" ;;
    @(torchrun|deepspeed|accelerate):* | *@(train|finetune|sft)*.py* | *"-m "*train*) metroplex_unknown "${1##*/}" ;;
    *-smi:*) metroplex_devices "$@"; metroplex_ended "${1##*/}" ;;
    *) metroplex_unknown "${1##*/}"; metroplex_ended "${1##*/}" ;;
  esac
}
command_not_found_handle() { metroplex_note "$@"; }
exec() { "$@"; }
command() {
  [[ ${1-} == -p ]] && shift
  [[ ${1-} == -- ]] && shift
  [[ $# == 0 ]] && return 0
  if [[ $1 == -[vV] && $# == 2 ]]; then
    builtin command "$@" && return 0
    [[ $2 == nvidia-smi ]] || metroplex_assumed_status "$2" 1 0 1 || return
    builtin printf '%s\n' "/usr/bin/${2##*/}"
  elif [[ $1 == -* ]]; then
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
type() { metroplex_find type "$@"; }
hash() { metroplex_find hash "$@"; }
# A trial assumes for other programs what command -v does.
metroplex_find() {  # type or hash, its words
  builtin "$@" 2> /dev/null && return 0
  [[ ${!#} == -* || ${!#} == nvidia-smi ]] || metroplex_assumed_status "${!#}" 1 0 1
}
# The folders of another source tree need not be on this machine: a second reading assumes that they exist. The error
# of cd is still printed, and the result carries a note.
if [[ $metroplex_folders == 1 ]]; then
  cd() { builtin cd "$@" || true; }
  pushd() { builtin pushd "$@" || true; }
fi
kill() { :; }
[() { metroplex_test "[" "$@"; }
test() { metroplex_test test "$@"; }
metroplex_names=" $(IFS=$' \t\n'; builtin echo $(builtin compgen -v)) metroplex_names "
# Before every command, with the script's own $1, $2, ... A name with a slash becomes a function of that name; errors
# do not end the trial.
metroplex_step() {
  set +eu
  trap - ERR
  [[ ${BASH_SOURCE[1]-environment} != environment ]] &&
    metroplex_line=${BASH_LINENO[0]} metroplex_file=${BASH_SOURCE[1]##*/} metroplex_source=${BASH_SOURCE[1]}
  [[ ${1-} == *@not@run@getopt@* ]] && exit 1  # it would shift for ever
  PATH=/nonexistent
  # The function exec cannot change the descriptors of the shell.
  local metroplex_text=$BASH_COMMAND
  if [[ $metroplex_text =~ ^exec[[:space:]]+[3-9][\<\>] ]]; then
    unset -f exec
    eval "$metroplex_text"
    exec() { "$@"; }
  fi
  local metroplex_word metroplex_words
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
  [[ -n ${metroplex_assumed+x} && $BASH_SUBSHELL == "$metroplex_assumed_in" ]] && unset metroplex_assumed
  [[ $BASH_COMMAND != @('[[ '|'case ')* ]] || metroplex_branch "$@" || return 1
  if [[ ${metroplex_forgive-} == 1 && ($BASH_COMMAND == exit* || $BASH_COMMAND == return*) ]]; then
    metroplex_forgive=0
    return 1
  fi
  return 0
}
)BASH";

}  // namespace metroplex::megatron
