"""`ngramspec.files` by its former name, for the modules of `ngramspec.build`."""

from ngramspec.files import naming as naming
from ngramspec.files import new_file as new_file
from ngramspec.files import private as private
from ngramspec.files import remove_temporaries as remove_temporaries
