// Bash functions that a trial defines before a launch script. They emulate common forms of small programs
// (dirname, date, seq, ...), because a trial starts no program. In other forms they print a mark, like any other
// program (metroplex_unknown of launch_trial.h). They stop the trial (metroplex_refuse) if the script depends on
// their status or on its own arguments.
#pragma once

namespace metroplex::megatron {

// The function metroplex_NAME replaces NAME. Variables start with mpx_ because a script may have read-only variables.
inline constexpr const char* kLaunchTools = R"BASH(
metroplex_dirname() {
  local mpx_name
  [[ ${1-} == -- ]] && shift || [[ ${1-} != -?* ]] || set --
  [[ $# != 1 ]] && { metroplex_unknown dirname; return; }
  mpx_name=${1%"${1##*[!/]}"}
  if [[ $mpx_name != */* ]]; then
    [[ -z $mpx_name && $1 == /* ]] && mpx_name=/ || mpx_name=.
  else
    mpx_name=${mpx_name%/*}
    mpx_name=${mpx_name%"${mpx_name##*[!/]}"}
  fi
  builtin printf '%s\n' "${mpx_name:-/}"
}
metroplex_basename() {
  local mpx_name
  [[ ${1-} == -- ]] && shift || [[ ${1-} != -?* ]] || set --
  [[ $# != [12] ]] && { metroplex_unknown basename; return; }
  mpx_name=${1%"${1##*[!/]}"}
  mpx_name=${mpx_name##*/}
  [[ -z $mpx_name && $1 == /* ]] && mpx_name=/
  [[ -n ${2-} && $mpx_name != "$2" ]] && mpx_name=${mpx_name%"$2"}
  builtin printf '%s\n' "$mpx_name"
}

# Prints the path of an existing folder, or of a name in one, without symbolic links. Fails with 2 for what no builtin
# can tell: where a link to a file leads.
metroplex_physical() {
  local mpx_folder mpx_name=$1 CDPATH=
  if [[ -d $1 ]]; then
    mpx_folder=$(builtin cd -P -- "$1" && builtin pwd -P) || return 1
    mpx_name=
  else
    [[ $1 == */ || -L $1 ]] && return 2
    mpx_folder=.
    [[ $1 == */* ]] && mpx_folder=${1%/*}/ mpx_name=${1##*/}
    mpx_folder=$(builtin cd -P -- "$mpx_folder" 2> /dev/null && builtin pwd -P) || return 1
  fi
  mpx_folder=/${mpx_folder#"${mpx_folder%%[!/]*}"}
  [[ -n $mpx_name && $mpx_folder != / ]] && mpx_folder+=/
  builtin printf '%s\n' "$mpx_folder$mpx_name"
}
metroplex_resolve() {  # TOOL, whether the name has to exist, FILE...
  local mpx_tool=$1 mpx_exists=$2 mpx_path mpx_failed=0 mpx_code
  shift 2
  for mpx_path; do
    if [[ -z $mpx_path || ($mpx_exists == 1 && ! -e $mpx_path && ! -L $mpx_path) ]]; then
      mpx_code=1
    else
      metroplex_physical "$mpx_path"
      mpx_code=$?
    fi
    [[ $mpx_code == 2 ]] && metroplex_unknown "$mpx_tool"
    [[ $mpx_code != 1 ]] && continue
    builtin printf '%s: %s: No such file or directory\n' "$mpx_tool" "$mpx_path" >&2
    mpx_failed=1
  done
  return "$mpx_failed"
}
metroplex_realpath() {
  local mpx_exists=0
  [[ ${1-} == -e ]] && { mpx_exists=1; shift; }
  [[ ${1-} == -- ]] && shift
  [[ $# == 0 || $1 == -?* ]] && { metroplex_unknown realpath; return; }
  metroplex_resolve realpath "$mpx_exists" "$@"
}
metroplex_readlink() {
  local mpx_how=
  [[ ${1-} == -[fe] ]] && { mpx_how=$1; shift; }
  [[ ${1-} == -- ]] && shift
  [[ $# == 0 || $1 == -?* || (-z $mpx_how && -L $1) || (-z $mpx_how && $# != 1) ]] &&
    { metroplex_unknown readlink; return; }
  case $mpx_how in
    -f) metroplex_resolve readlink 0 "$@" ;;
    -e) metroplex_resolve readlink 1 "$@" ;;
    *) return 1 ;;
  esac
}

# In every conversion that it lets pass, strftime is what date has too.
metroplex_date() {
  local mpx_format= mpx_word mpx_now=${EPOCHREALTIME-} mpx_text
  local mpx_plain='^([^%()\]|%[-_0^#]?[aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ]|%%|%N)+$'
  for mpx_word; do
    case $mpx_word in
      -u | --utc | --universal) local -x TZ=UTC0 ;;
      +*) [[ -z $mpx_format ]] && mpx_format=${mpx_word#+} || mpx_format='(' ;;
      *) mpx_format='(' ;;
    esac
  done
  case ${LC_ALL:-${LC_TIME:-${LANG:-C}}} in
    C | POSIX | C.*) [[ -z $mpx_format && $* != *+* ]] && mpx_format='%a %b %e %H:%M:%S %Z %Y' ;;
  esac
  [[ ($mpx_format =~ $mpx_plain || $* == +) && -n $mpx_now ]] || { metroplex_unknown date; return; }
  mpx_word=${mpx_now#*[.,]}000
  mpx_format=${mpx_format//%%/$'\1'}
  mpx_format=${mpx_format//%N/$mpx_word}
  [[ -n $mpx_format ]] && builtin printf -v mpx_text "%(${mpx_format//$'\1'/%%})T" "${mpx_now%[.,]*}"
  builtin printf '%s\n' "$mpx_text"
}

metroplex_seq() {
  local mpx_between=$'\n' mpx_number mpx_step=1 mpx_first=1 mpx_text=
  [[ ${1-} == -s && $# -ge 2 ]] && set -- "-s$2" "${@:3}"
  [[ ${1-} == -s?* ]] && { mpx_between=${1#-s}; shift; }
  for mpx_number; do
    [[ $mpx_number =~ ^(0|-?[1-9][0-9]{0,5})$ ]] || set --
  done
  [[ $# == 3 && $2 == 0 || $# != [123] ]] && { metroplex_unknown seq; return; }
  [[ $# -ge 2 ]] && mpx_first=$1
  [[ $# == 3 ]] && mpx_step=$2
  for ((mpx_number = mpx_first; mpx_step > 0 ? mpx_number <= ${!#} : mpx_number >= ${!#}; mpx_number += mpx_step)); do
    mpx_text+=${mpx_text:+$mpx_between}$mpx_number
  done
  [[ -n $mpx_text ]] && builtin printf '%s\n' "$mpx_text"
  return 0
}

metroplex_nproc() {
  local mpx_range mpx_ranges mpx_all=0
  [[ $# != 0 || ${OMP_THREAD_LIMIT@a} == *x* ]] && { metroplex_unknown nproc; return; }
  if [[ ${OMP_NUM_THREADS@a} == *x* && $OMP_NUM_THREADS =~ ^\ *0*([1-9][0-9]{0,8})\ *(,.*)?$ ]]; then
    builtin printf '%s\n' "${BASH_REMATCH[1]}"
    return
  fi
  while IFS=$':,\t ' read -r -a mpx_ranges; do
    [[ ${mpx_ranges[0]} == Cpus_allowed_list ]] && break
  done < /proc/self/status
  for mpx_range in "${mpx_ranges[@]:1}"; do mpx_all=$((mpx_all + ${mpx_range#*-} - ${mpx_range%-*} + 1)); done
  builtin printf '%s\n' "$mpx_all"
}
metroplex_hostname() {
  local mpx_name
  [[ $# == 0 || "$*" == -s || "$*" == --short ]] || { metroplex_unknown hostname; return; }
  IFS= read -r mpx_name < /proc/sys/kernel/hostname
  [[ $# == 1 ]] && mpx_name=${mpx_name%%.*}
  builtin printf '%s\n' "$mpx_name"
}
metroplex_machine=$HOSTTYPE
metroplex_arch() { metroplex_uname -m; }
metroplex_uname() {
  local mpx_text
  case "$*" in
    "" | -s) mpx_text=Linux ;;
    -n) IFS= read -r mpx_text < /proc/sys/kernel/hostname ;;
    -r) IFS= read -r mpx_text < /proc/sys/kernel/osrelease ;;
    -m) mpx_text=$metroplex_machine ;;
    *) metroplex_unknown uname; return ;;
  esac
  builtin printf '%s\n' "$mpx_text"
}
metroplex_whoami() {
  local mpx_name='\u'
  mpx_name=${mpx_name@P}
  [[ $# != 0 || $UID != "$EUID" || $mpx_name == "I have no name!" ]] && { metroplex_unknown whoami; return; }
  builtin printf '%s\n' "$mpx_name"
}
metroplex_id() {
  case "$*" in
    -u) builtin printf '%s\n' "$EUID" ;;
    -un | -nu | "-u -n" | "-n -u") metroplex_whoami ;;
    *) metroplex_unknown id ;;
  esac
}

# A launcher counts by its name; its folder does not matter. The trials differ on whether other programs exist.
metroplex_which() {
  case ${1-}:$# in
    torchrun:1 | python*:1 | deepspeed:1 | accelerate:1 | mpirun:1 | mpiexec:1 | srun:1 | bash:1 | nvidia-smi:1) ;;
    [!-]*:1) metroplex_assumed_status "$1" 1 0 1 || return ;;
    *) metroplex_unknown which; return ;;
  esac
  builtin printf '/usr/bin/%s\n' "$1"
}

metroplex_expr() {
  local mpx_number='^(0|-?[1-9][0-9]{0,17})$' mpx_result
  [[ $# == 3 && $1 =~ $mpx_number && $3 =~ $mpx_number ]] || set -- "$@" x x x
  case "$# $2" in
    "3 +" | "3 -" | "3 <" | "3 <=" | "3 >" | "3 >=" | "3 !=") mpx_result=$(($1 $2 $3)) ;;
    "3 =" | "3 ==") mpx_result=$(($1 == $3)) ;;
    "3 *") [[ ${#1} -lt 10 && ${#3} -lt 10 ]] && mpx_result=$(($1 * $3)) ;;
    "3 /" | "3 %") [[ $3 != 0 ]] && mpx_result=$(($1 $2 $3)) ;;
  esac
  [[ -z $mpx_result ]] && { metroplex_unknown expr; return; }
  builtin printf '%s\n' "$mpx_result"
  [[ $mpx_result != 0 ]]
}

metroplex_ls() {
  local mpx_path mpx_found=$(($# == 0)) mpx_failed=0
  [[ "$*" == */dev/@(nvidia|dri|kfd|davinci|accel)* ]] && { metroplex_unknown ls; metroplex_assumed_status ls 0 1 0; return; }
  for mpx_path; do
    [[ $mpx_path == -* ]] && continue
    [[ -e $mpx_path || -L $mpx_path ]] && { mpx_found=1; continue; }
    builtin printf "ls: cannot access '%s': No such file or directory\n" "$mpx_path" >&2
    mpx_failed=2
  done
  [[ $mpx_found == 1 || $mpx_failed == 0 ]] && metroplex_unknown ls
  return "$mpx_failed"
}
metroplex_getopt() { metroplex_refuse getopt; }
)BASH";

}  // namespace metroplex::megatron
