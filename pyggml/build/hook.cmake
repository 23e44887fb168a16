# Included by every project() of the upstream tree (CMAKE_PROJECT_INCLUDE).
#
# Upstream's common/CMakeLists.txt configures anew whenever the git index changes, to embed the commit.
# The commit is given from outside here, and a mere `git status` may rewrite the index: that one
# dependency is taken out, all others stay.
function(pyggml_forget_git_index directory)
    get_property(inputs DIRECTORY "${directory}" PROPERTY CMAKE_CONFIGURE_DEPENDS)
    if(inputs)
        list(FILTER inputs EXCLUDE REGEX "/index$")
        set_property(DIRECTORY "${directory}" PROPERTY CMAKE_CONFIGURE_DEPENDS "${inputs}")
    endif()
    get_property(below DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
    foreach(one IN LISTS below)
        pyggml_forget_git_index("${one}")
    endforeach()
endfunction()

if(PROJECT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL pyggml_forget_git_index "${CMAKE_SOURCE_DIR}")
endif()
